// The Ctrl-K dialog, on every page. Without this file the same link opens the search page.
"use strict";
(() => {
  const dialog = document.getElementById("search-box");
  if (!dialog) return;
  const input = dialog.querySelector("input");
  const options = () => [...dialog.querySelectorAll("[role=option]")];
  let chosen = 0;

  function mark(index) {
    const all = options();
    chosen = all.length ? (index + all.length) % all.length : 0;
    all.forEach((one, number) => one.setAttribute("aria-selected", String(number === chosen)));
    if (all.length) {
      input.setAttribute("aria-activedescendant", all[chosen].id);
      all[chosen].scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  }

  function open() {
    if (dialog.open) return;
    dialog.showModal();
    input.select();
    input.dispatchEvent(new Event("opened"));
  }

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      open();
    }
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-search]") && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      open();
    } else if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") mark(chosen + 1);
    else if (event.key === "ArrowUp") mark(chosen - 1);
    else if (event.key === "Enter") {
      // The results may be older than the input: then open the search page
      if (dialog.querySelector("#found")?.dataset.q === input.value.trim()) options()[chosen]?.click();
      else location.assign(`${input.form.action}?${new URLSearchParams({ q: input.value })}`);
    } else return;
    event.preventDefault();
  });
  document.addEventListener("htmx:after:swap", () => { if (dialog.open) mark(0); });
})();
