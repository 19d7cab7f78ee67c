// A log of any length: the lines around the visible place, and a slider over the whole log. Nearby parts are loaded before
// they are reached, distant ones are removed, so a page never holds more than a few pieces. Lines are identified by the
// byte at which they begin (jobs/logs/log_chunks.py). A growing log is followed while its end is visible, and the view
// stays at the end as long as the reader is there.
"use strict";
(() => {
  const MOST_LINES = 1500;
  const MOST_BYTES = 256 * 1024;
  const SCREENS_AHEAD = 2;
  const FOLLOW_MS = 2000;
  const SETTLES_MS = 120;
  const NEAR_END_PX = 24;

  function viewer(section) {
    const pre = section.querySelector("pre");
    const slider = section.querySelector(".place input"), words = section.querySelector(".place [data-words]");
    let url = section.dataset.lines;
    let start = Number(pre.dataset.start), stop = Number(pre.dataset.stop), size = Number(pre.dataset.size);
    let busy = false, wanted = null, settling = null, drawing = false;

    const height = () => pre.clientHeight;
    const below = () => pre.scrollHeight - pre.scrollTop - height();
    const isAtEnd = () => stop >= size && below() < NEAR_END_PX;
    const toEnd = () => { pre.scrollTop = pre.scrollHeight; };

    async function read(query) {
      const answer = await fetch(`${url}${query}`, { credentials: "same-origin" });
      if (!answer.ok || answer.redirected) throw new Error(answer.statusText);
      return answer.json();
    }

    function rows(piece, numbered) {
      const found = document.createDocumentFragment();
      piece.lines.forEach(([at, text], index) => {
        const row = document.createElement("span");
        row.dataset.at = at;
        if (numbered !== null) {
          const number = document.createElement("a");
          row.dataset.number = number.textContent = numbered + index;
          number.className = "no";
          number.tabIndex = -1;
          number.href = `${section.dataset.page}&line=${numbered + index}`;
          row.append(number);
        }
        row.append(`${text}\n`);
        found.append(row);
      });
      return found;
    }

    // Line numbers continue only across complete lines, from a line that has a number
    const numberOf = (row, whole) => (whole && row?.dataset.number ? Number(row.dataset.number) : null);

    function append(piece) {
      const stays = isAtEnd();
      let first = null;
      while (pre.lastElementChild && Number(pre.lastElementChild.dataset.at) >= piece.start) {
        first = pre.lastElementChild;  // this line was incomplete
        first.remove();
      }
      const same = numberOf(first, piece.whole), before = numberOf(pre.lastElementChild, piece.whole);
      const hit = first?.classList.contains("hit");
      pre.append(rows(piece, same ?? (before === null ? null : before + 1)));
      if (hit) pre.querySelector(`[data-at="${first.dataset.at}"]`)?.classList.add("hit");
      stop = piece.stop;
      removeDistant("firstElementChild");
      if (stays) toEnd();
    }

    function prepend(piece) {
      const tall = pre.scrollHeight, next = numberOf(pre.firstElementChild, piece.whole);
      pre.prepend(rows(piece, next === null ? null : next - piece.lines.length));
      pre.scrollTop += pre.scrollHeight - tall;
      start = piece.start;
      removeDistant("lastElementChild");
    }

    // Remove lines on the side opposite to the scroll direction
    function removeDistant(side) {
      const gone = [], kept = () => pre.childElementCount - gone.length;
      let row = pre[side];
      const next = side === "firstElementChild" ? "nextElementSibling" : "previousElementSibling";
      const tooMuch = () => kept() > MOST_LINES || (kept() > 1 && (side === "firstElementChild" ? stop - Number(row.dataset.at) : Number(row.dataset.at) - start) > MOST_BYTES);
      while (row && tooMuch()) { gone.push(row); row = row[next]; }
      if (!gone.length) return;
      const tall = pre.scrollHeight;
      if (side === "lastElementChild") stop = Number(gone.at(-1).dataset.at);
      for (const one of gone) one.remove();
      if (side === "firstElementChild") {
        start = Number(pre.firstElementChild.dataset.at);
        pre.scrollTop -= tall - pre.scrollHeight;
      }
    }

    function replace(piece, toTheEnd) {
      pre.classList.toggle("numbered", piece.number !== null);
      pre.replaceChildren(rows(piece, piece.number));
      start = piece.start;
      stop = piece.stop;
      if (toTheEnd) toEnd(); else pre.scrollTop = 0;
    }

    // One request at a time; a place that the user chose goes first
    async function run(query, take) {
      busy = true;
      pre.setAttribute("aria-busy", "true");
      try {
        const piece = await read(query);
        const shrunk = piece.size < stop && !query.includes("&before=");
        size = piece.size;
        if (shrunk) replace(await read("&numbered"), true); else take(piece);
        showPosition();
      } catch { /* the next scroll retries; the header shows whether the server responds */ }
      busy = false;
      pre.removeAttribute("aria-busy");
      if (wanted !== null) jump(wanted);
    }

    function jump(at) {
      wanted = at;
      if (busy) return;
      wanted = null;
      if (at >= size) run("&numbered", (piece) => replace(piece, true)).then(loadNearby);
      else run(`&at=${at}&numbered`, (piece) => replace(piece, false)).then(loadNearby);
    }

    function loadNearby() {
      if (busy) return;
      const near = SCREENS_AHEAD * height();
      const was = [start, stop].join();
      const more = () => { if ([start, stop].join() !== was) loadNearby(); };
      if (start > 0 && pre.scrollTop < near) run(`&before=${start}`, prepend).then(more);
      else if (stop < size && below() < near) run(`&at=${stop}`, append).then(more);
    }

    // --- current position

    function top() {
      const rows = pre.children, edge = pre.scrollTop + pre.offsetTop;
      let low = 0, high = rows.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (rows[middle].offsetTop <= edge) low = middle; else high = middle - 1;
      }
      return rows.length ? Number(rows[low].dataset.at) : 0;
    }

    const bytes = (count) => (count < 1024 ? `${count} B` : count < 1024 ** 2 ? `${(count / 1024).toFixed(0)} KiB` : `${(count / 1024 ** 2).toFixed(1)} MiB`);

    function showPosition() {
      drawing = false;
      const at = isAtEnd() ? size : top();
      const text = `${size ? Math.round(100 * at / size) : 100} % of ${bytes(size)}`;
      slider.max = size;
      if (document.activeElement !== slider || settling === null) slider.value = at;
      slider.setAttribute("aria-valuetext", text);
      if (words.textContent !== text) words.textContent = text;
    }

    pre.addEventListener("scroll", () => {
      loadNearby();
      if (!drawing) { drawing = true; requestAnimationFrame(showPosition); }
    });
    pre.addEventListener("keydown", (event) => {
      if (event.key === "Home") { event.preventDefault(); if (start > 0) jump(0); else pre.scrollTop = 0; }
      if (event.key === "End") { event.preventDefault(); if (stop < size) jump(Infinity); else toEnd(); }
    });
    slider.addEventListener("input", () => {
      clearTimeout(settling);
      settling = setTimeout(() => { settling = null; jump(Number(slider.value) >= size ? Infinity : Number(slider.value)); }, SETTLES_MS);
    });

    if (pre.dataset.opensAt === "end") toEnd();
    if (pre.dataset.opensAt === "hit") pre.scrollTop = (pre.querySelector(".hit")?.offsetTop ?? 0) - pre.offsetTop - height() / 3;
    showPosition();
    loadNearby();
    return {
      follow: () => { if (!busy && stop >= size) run(`&at=${stop}`, append); },
      of: (address) => { if (url !== address) { url = address; jump(Infinity); } },
    };
  }

  // A section that arrives with the first line, or with another attempt, is another log
  const shown = new WeakMap();
  function each() {
    for (const section of document.querySelectorAll("section[data-lines]")) {
      const pre = section.querySelector("pre");
      if (!pre) continue;
      if (shown.has(pre)) shown.get(pre).of(section.dataset.lines); else shown.set(pre, viewer(section));
    }
  }

  function follow() {
    for (const section of document.querySelectorAll("section[data-lines][data-grows]")) shown.get(section.querySelector("pre"))?.follow();
  }

  document.addEventListener("htmx:after:swap", () => {
    each();
    // The fragment that reports the end of the job may arrive before its last lines were read
    for (const section of document.querySelectorAll("section[data-lines]")) shown.get(section.querySelector("pre"))?.follow();
  });
  setInterval(() => { if (!document.hidden) follow(); }, FOLLOW_MS);
  each();
})();
