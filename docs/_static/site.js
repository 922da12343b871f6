/* What the theme leaves out for keyboards and screen readers. */
addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll('[role="heading"]:not([aria-level])')) {
    caption.setAttribute("aria-level", "2");
  }
  const asides = { "sidebar-drawer": "Pages", "toc-drawer": "On this page" };
  for (const [name, label] of Object.entries(asides)) {
    document.querySelector(`.${name}`)?.setAttribute("aria-label", label);
  }
  const article = document.querySelector("article");
  if (article && !article.querySelector("h1")) {
    const heading = document.createElement("h1");
    heading.textContent = document.title.split(" - ")[0];
    article.prepend(heading);
  }
  for (const box of document.querySelectorAll("pre, .table-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
});
