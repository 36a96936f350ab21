// Light, dark or as the system: set before anything is drawn, so this is no module.
(() => {
  try {
    const kept = localStorage.getItem("halftone.theme");
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch { /* no storage: as the system */ }
})();
