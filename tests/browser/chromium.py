"""The browser of the tests, and how it is started."""

import shutil

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
# The layout shifts of a page since it was opened, each with its size and the elements that moved
LAYOUT_SHIFTS = """() => new Promise((answer) => {
  const shifts = [];
  const name = ({node}) => node?.id || node?.className || node?.nodeName;
  const note = (list) => {
    for (const one of list) if (!one.hadRecentInput) shifts.push([one.value, one.sources.map(name)]);
  };
  const observer = new PerformanceObserver((list) => note(list.getEntries()));
  observer.observe({type: "layout-shift", buffered: true});
  setTimeout(() => { note(observer.takeRecords()); answer(shifts); }, 50);
})"""
