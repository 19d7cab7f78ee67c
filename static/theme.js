// Loaded before the first paint, so that a chosen theme never flashes the other one.
"use strict";
(() => {
  const THEMES = ["auto", "light", "dark"];
  const root = document.documentElement;
  let chosen = "auto";
  try { chosen = localStorage.getItem("theme") || "auto"; } catch { /* storage is off: follow the system */ }

  const apply = () => {
    if (chosen === "auto") delete root.dataset.theme; else root.dataset.theme = chosen;
    const button = document.querySelector("[data-theme-switch]");
    if (button) {
      button.querySelector("[data-theme-name]").textContent = chosen;
      button.setAttribute("aria-label", `Theme: ${chosen}. Change theme.`);
    }
  };

  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.querySelector("[data-theme-switch]")?.addEventListener("click", () => {
      chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
      try { localStorage.setItem("theme", chosen); } catch { /* without storage it lasts as long as the page */ }
      apply();
    });
  });
})();
