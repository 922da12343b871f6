/* Text of the page that a reader cannot see whole: as lines "what: text". */
(() => {
  const found = [];
  const tell = (what, element, text) => {
    const place = element.closest("[id]");
    found.push(`${what}: ${element.tagName.toLowerCase()} in #${place ? place.id : ""}: ${text.trim().slice(0, 60)}`);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
    if (element.closest("script, style, title, desc, option, .hidden, .skip")) continue;
    range.selectNodeContents(node);
    const boxes = Array.from(range.getClientRects());
    if (!boxes.length) continue;
    const left = Math.min(...boxes.map((box) => box.left));
    const right = Math.max(...boxes.map((box) => box.right));
    const top = Math.min(...boxes.map((box) => box.top));
    const bottom = Math.max(...boxes.map((box) => box.bottom));
    const size = Number.parseFloat(getComputedStyle(element).fontSize);
    if (size < 11) tell(`${size} px`, element, node.data);
    let scrolls = false;
    for (let box = element; box && box !== document.body; box = box.parentElement) {
      const style = getComputedStyle(box);
      const area = box.getBoundingClientRect();
      const cut = box instanceof SVGSVGElement || /hidden|clip/.test(style.overflowX + style.overflowY);
      const beyond = right > area.right + 1 || left < area.left - 1;
      if (cut && (beyond || bottom > area.bottom + 2 || top < area.top - 2)) {
        tell(`cut by ${box.tagName.toLowerCase()}`, element, node.data);
        break;
      }
      if (/^(td|th|li|dd|dt|button|a)$/i.test(box.tagName) && beyond && !scrolls) {
        tell(`beyond its ${box.tagName.toLowerCase()}`, element, node.data);
        break;
      }
      if (/auto|scroll/.test(style.overflowX)) {
        scrolls = true;
        if (area.right > innerWidth + 1 || area.left < -1) tell("a box beyond the window", box, node.data);
      }
    }
    if (!scrolls && (right > innerWidth + 1 || left < -1)) tell("beyond the window", element, node.data);
  }
  if (document.documentElement.scrollWidth > innerWidth) {
    found.push(`the page is ${document.documentElement.scrollWidth} wide in ${innerWidth}`);
  }
  for (const box of document.querySelectorAll("svg rect + text, svg g > text")) {
    const rect = box.parentElement.querySelector("rect");
    if (!rect) continue;
    const inner = box.getBoundingClientRect();
    const outer = rect.getBoundingClientRect();
    if (inner.right > outer.right + 1 || inner.left < outer.left - 1) tell("wider than its node", box, box.textContent);
  }
  return Array.from(new Set(found));
})()
