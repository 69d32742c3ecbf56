"use strict";
(() => {
  // Copying: the selected text is the way out where a page may not write to the clipboard.
  for (const block of document.querySelectorAll(".flags")) {
    const code = block.querySelector("code");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
    block.append(button);
  }

  // Sorting by the number behind a cell, or its text; a second time turns the order round.
  for (const row of document.querySelectorAll("tr.heads")) {
    const body = row.closest("table").tBodies[0];
    const heads = [...row.cells];
    const key = (line, at) => {
      const cell = line.cells[at];
      return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
    };
    heads.forEach((head, at) => {
      head.classList.add("sorts");
      head.tabIndex = 0;
      const sort = () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const lines = [...body.rows].sort((one, two) => {
          const [a, b] = [key(one, at), key(two, at)];
          if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
          const order = typeof a === "number" ? a - b : a.localeCompare(b, "en");
          return down ? -order : order;
        });
        body.append(...lines);
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
      });
    });
  }

  // What a mark is called, at once and beside the pointer, in place of the slow built-in hint.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const words = new WeakMap();
  for (const chart of document.querySelectorAll("svg")) {
    // The chart's own title moves to a label: as a title it would show through as a hint.
    const title = chart.querySelector(":scope > title");
    chart.setAttribute("aria-label", title.textContent);
    chart.setAttribute("aria-describedby", `${chart.id}-desc`);
    chart.removeAttribute("aria-labelledby");
    title.remove();
    for (const hint of chart.querySelectorAll("title")) {
      words.set(hint.parentNode, hint.textContent);
      hint.remove();
    }
  }
  document.addEventListener("pointermove", (event) => {
    let mark = event.target;
    while (mark && !words.has(mark)) mark = mark.parentNode;
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = words.get(mark);
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const above = event.clientY + 22 + tip.offsetHeight > innerHeight;
    tip.style.left = `${Math.max(left, 8)}px`;
    tip.style.top = `${above ? event.clientY - tip.offsetHeight - 14 : event.clientY + 18}px`;
  });
})();
