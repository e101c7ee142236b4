// Before the first paint, so that nobody in the dark is flashed.
(function () {
  let kept = null;
  try { kept = localStorage.getItem("vramscope-theme"); } catch (e) { /* storage switched off */ }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = kept === "dark" || kept === "light" ? kept : dark ? "dark" : "light";
})();
