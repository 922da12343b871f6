/* Filter, sort, open rows, choose the theme. The page reads without it; it changes no content from
   the model and never makes markup from text. This first comment is not copied. */
(() => {
  "use strict";
  const root = document.documentElement;

  const theme = document.getElementById("theme");
  const themes = ["auto", "light", "dark"];
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    theme.textContent = `Theme: ${next}`;
  });

  const siteTable = (table) => {
    const part = (name) => document.getElementById(table.id.replace(/site-table$/, name));
    const body = table.tBodies[0];
    const heads = Array.from(table.tHead.rows[0].cells);
    let rows = [];
    for (const row of body.children) {
      if (row.classList.contains("more")) rows[rows.length - 1].more = row;
      else rows.push({ row, more: null, cells: row.children });
    }
    const cell = (entry, column) => entry.cells[column].textContent;

    // Rows: the name becomes a button for the row below it.

    const button = (parent, className) => {
      const made = document.createElement("button");
      made.type = "button";
      made.className = className;
      made.append(...parent.childNodes);
      parent.append(made);
      return made;
    };

    // The graphs of a rewrite are in the page once; a row that opens shows a copy.
    const addGraphs = (more) => {
      const place = more.querySelector("[data-graphs]");
      if (!place || place.firstChild) return;
      let rewrite = document.getElementById(place.dataset.graphs);
      const other = rewrite && rewrite.querySelector("[data-as]");
      if (other) rewrite = document.getElementById(other.dataset.as);
      const drawing = rewrite && rewrite.querySelector(".drawing");
      if (drawing) place.append(drawing.cloneNode(true));
    };

    const toggle = (entry, on) => {
      if (!entry || !entry.more) return;
      const open = on === undefined ? !entry.more.classList.contains("shown") : on;
      entry.more.classList.toggle("shown", open);
      entry.opener.setAttribute("aria-expanded", String(open));
      if (open) addGraphs(entry.more);
    };

    const entries = new Map();
    for (const entry of rows) {
      entries.set(entry.row, entry);
      if (!entry.more) continue;
      entry.more.id = `${entry.row.id}-more`;
      entry.more.querySelector("details").open = true;
      entry.row.classList.add("opens");
      entry.opener = button(entry.cells[0], "open");
      entry.opener.setAttribute("aria-expanded", "false");
      entry.opener.setAttribute("aria-controls", entry.more.id);
    }

    body.addEventListener("click", (event) => {
      const row = event.target.closest(".opens");
      if (!row || event.target.closest("a")) return;
      if (!event.target.closest("button") && !getSelection().isCollapsed) return;
      toggle(entries.get(row));
    });

    // Sort: what is no number comes last, either way round.

    const collator = new Intl.Collator("en", { numeric: true });
    const numeric = (text) => {
      if (text === "inf" || text === "nan") return Infinity;
      const value = Number.parseFloat(text.replace(/^R/, ""));
      return Number.isNaN(value) ? undefined : value;
    };
    const keys = {
      text: (text) => text,
      number: numeric,
      order: (text, head) => {
        const position = head.dataset.order.split(" ").indexOf(text);
        return position < 0 ? undefined : position;
      },
    };
    const compare = (a, b) => (typeof a === "string" ? collator.compare(a, b) : a - b || 0);

    const sort = (column, descending) => {
      const head = heads[column];
      const key = keys[head.dataset.sort];
      const sorted = rows.map((entry) => ({ entry, key: key(cell(entry, column), head) }));
      sorted.sort((a, b) => {
        if (a.key === undefined || b.key === undefined) {
          return (a.key === undefined) - (b.key === undefined);
        }
        const order = a.key === b.key ? 0 : compare(a.key, b.key);
        return descending ? -order : order;
      });
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      rows = sorted.map(({ entry }) => entry);
      const elements = document.createDocumentFragment();
      for (const { row, more } of rows) {
        elements.append(row);
        if (more) elements.append(more);
      }
      body.append(elements);
      filter();
    };

    heads.forEach((head, column) => {
      button(head, "sort").addEventListener("click", () => {
        sort(column, head.getAttribute("aria-sort") === "ascending");
      });
    });

    // Filter.

    const text = part("filter-text");
    const selects = Array.from(part("filters").querySelectorAll("select"));
    const count = part("filter-count");
    const more = part("show-all");
    let limit = Number(table.dataset.shown);
    const searched = (entry) => {
      if (entry.words === undefined) {
        const parts = [entry.row, entry.more].filter((row) => row !== null);
        const names = parts.flatMap((row) => Array.from(row.querySelectorAll("code")));
        entry.words = names.map((name) => name.textContent).join("\n").toLowerCase();
      }
      return entry.words;
    };

    const filter = () => {
      const wanted = text.value.trim().toLowerCase();
      const chosen = selects.filter((select) => select.value);
      let found = 0;
      for (const entry of rows) {
        const fits =
          chosen.every((select) => cell(entry, Number(select.dataset.column)) === select.value) &&
          (!wanted || searched(entry).includes(wanted));
        found += fits;
        const shown = fits && found <= limit;
        entry.row.classList.toggle("rest", !shown);
        if (!shown) toggle(entry, false);
      }
      const all = rows.length === 1 ? "1 site" : `${rows.length} sites`;
      const some = found === rows.length ? all : `${found} of ${all}`;
      count.textContent = found > limit ? `${some}, the first ${limit} shown` : some;
      more.hidden = found <= limit;
    };

    more.addEventListener("click", () => {
      limit = Infinity;
      filter();
      text.focus();
    });

    const reset = () => {
      text.value = "";
      for (const select of selects) select.value = "";
      filter();
    };

    part("filters").hidden = false;
    text.addEventListener("input", filter);
    for (const select of selects) select.addEventListener("change", filter);
    part("filter-reset").addEventListener("click", reset);
    reset(); // browsers bring back what was typed before a reload

    // Opens a row, whatever is filtered; says whether it is one of this table.
    return (row) => {
      const entry = entries.get(row);
      if (!entry) return false;
      if (rows.indexOf(entry) >= limit) limit = Infinity;
      reset();
      toggle(entry, true);
      row.scrollIntoView({ block: "start" });
      return true;
    };
  };

  const openers = Array.from(document.querySelectorAll("table.sites"), siteTable);

  // A link to a site, e.g. report.html#s12, opens it.

  const follow = () => {
    const row = document.getElementById(location.hash.slice(1));
    openers.some((open) => open(row));
  };
  addEventListener("hashchange", follow);
  follow();
})();
