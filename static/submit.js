// The submit form: errors of the preview are shown at the fields while the user types, and commands can be copied.
// Without this file the preview lists the errors, and the server shows them at the fields after a submission.
"use strict";
(() => {
  const form = document.getElementById("submit-form");
  if (!form) return;
  document.documentElement.dataset.scripted = "";  // shows the copy buttons

  function showError(field, control, why) {
    let note = field.querySelector(".error");
    field.classList.toggle("wrong", Boolean(why));
    control.setAttribute("aria-invalid", String(Boolean(why)));
    if (!why) { note?.remove(); return; }
    if (!note) {
      note = document.createElement("p");
      note.className = "error";
      note.id = `${control.id}_error`;
      field.append(note);
    }
    if (note.textContent !== why) note.textContent = why;
  }

  function showErrors() {
    const preview = document.getElementById("preview");
    if (!preview.hasAttribute("data-checked")) return;
    const found = new Map();
    for (const item of preview.querySelectorAll("[data-field]")) {
      const why = item.querySelector("span").textContent;
      found.set(item.dataset.field, [found.get(item.dataset.field), why].filter(Boolean).join(" "));
    }
    for (const field of form.querySelectorAll(".field")) {
      const control = field.querySelector("input, select, textarea");
      // The preview does not report a missing command: the user may not have come to it yet
      if (control.name === "command" && !control.value.trim()) continue;
      showError(field, control, found.get(control.name));
    }
  }

  async function copy(button) {
    const text = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      // Without the permission, or over plain HTTP: select the text for the user
      getSelection().selectAllChildren(text);
      button.textContent = "Press Ctrl C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  document.addEventListener("htmx:after:swap", showErrors);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
  });
})();
