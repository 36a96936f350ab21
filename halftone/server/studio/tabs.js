// Tabs by the ARIA pattern: one stop for Tab, arrows go through them and choose at once.

/// tabs: elements with role="tab"; pick(index) shows a panel and marks the tab.
export function arrowTabs(tabs, pick) {
  tabs.forEach((tab, at) => {
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      let to = -1;
      if (step) to = (at + step + tabs.length) % tabs.length;
      else if (event.key === "Home") to = 0;
      else if (event.key === "End") to = tabs.length - 1;
      else if (event.key === " ") to = at;
      if (to < 0) return;
      event.preventDefault();
      pick(to);
      tabs[to].focus();
    });
  });
}

export function markTab(tabs, chosen) {
  tabs.forEach((tab, at) => {
    tab.setAttribute("aria-selected", String(at === chosen));
    tab.tabIndex = at === chosen ? 0 : -1;
  });
}
