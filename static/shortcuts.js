// Keyboard help on every page, and actions of the search that happen on the page instead of at a URL.
"use strict";
(() => {
  const help = document.getElementById("shortcuts");
  if (!help) return;
  const show = () => { if (!help.open) help.showModal(); };
  const COMMANDS = {
    shortcuts: show,
    theme: () => document.querySelector("[data-theme-switch]")?.click(),
  };

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input:not([type=checkbox]), select, textarea");
    if (event.key !== "?" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    event.preventDefault();
    show();
  });
  document.addEventListener("click", (event) => {
    const run = COMMANDS[event.target.closest("[data-command]")?.dataset.command];
    if (run) {
      event.preventDefault();
      document.querySelector("dialog[open]")?.close();
      run();
    } else if (event.target === help) help.close();
  });
  document.querySelectorAll("[data-keys]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", show);
  });

  // A link to a dialog, such as "Drain node-7" in the search, opens it
  function openLinked() {
    const linked = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (linked && linked.matches("details.ask")) linked.open = true;
  }
  window.addEventListener("hashchange", openLinked);
  openLinked();
})();
