// Keyboard navigation and selection in a list of jobs or nodes, and navigation on the home page. Both survive the
// replacement of a fragment.
"use strict";
(() => {
  const chosen = new Set();
  let here = "";  // id of the row with the keyboard cursor
  const LISTS = ["#jobs", "#nodes", "#exceptions", "#trainings", "#campaigns", "#queue"];
  const ROWS = LISTS.map((list) => `${list} :is(tbody tr[id], li[id])`).join(",");
  const rows = () => [...document.querySelectorAll(ROWS)].filter((row) => row.checkVisibility());
  const boxes = () => [...document.querySelectorAll("#jobs input[name=id], #nodes input[name=id]")];
  const all = () => document.querySelector("[data-pick-all]");

  function show() {
    for (const box of boxes()) box.checked = chosen.has(box.value);
    const count = document.querySelector("[data-picked]");
    if (count) count.textContent = String(chosen.size);
    if (all()) {
      all().hidden = false;
      all().checked = boxes().length > 0 && boxes().every((box) => box.checked);
    }
    for (const row of rows()) row.toggleAttribute("data-here", row.id === here);
  }

  function pick(box, yes) {
    if (yes) chosen.add(box.value); else chosen.delete(box.value);
  }

  function step(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.id === here);
    const row = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))];
    here = row.id;
    show();
    row.scrollIntoView({ block: "nearest" });
    (row.querySelector(".c-id a, .c-node a") ?? row.querySelector("a"))?.focus({ preventScroll: true });
  }

  const KEYS = {
    j: () => step(1),
    k: () => step(-1),
    x: () => {
      const box = document.getElementById(here)?.querySelector("input[name=id]");
      if (box) pick(box, !box.checked);
    },
    n: () => document.querySelector(".pager a[rel=next]")?.click(),
    p: () => document.querySelector(".pager a:not([rel=next])")?.click(),
    "/": () => document.querySelector(".filters input[name=q]")?.focus(),
    Escape: () => chosen.clear(),
  };

  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const act = KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    show();
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("input[name=id]")) pick(event.target, event.target.checked);
    else if (event.target.matches("[data-pick-all]")) boxes().forEach((box) => pick(box, event.target.checked));
    else return;
    show();
  });
  // Rows selected on other pages of the list are included
  document.getElementById("many")?.addEventListener("formdata", (event) => {
    const there = new Set(boxes().map((box) => box.value));
    for (const id of chosen) if (!there.has(id)) event.formData.append("id", id);
  });
  document.addEventListener("htmx:after:swap", show);
  window.addEventListener("pageshow", () => {
    for (const box of boxes()) if (box.checked) chosen.add(box.value);
    show();
  });
})();
