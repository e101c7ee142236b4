// Sets the theme before the first paint, so that a dark page does not flash.
(function () {
  let kept = null;
  try { kept = localStorage.getItem("vramscope-theme"); } catch (e) { /* storage switched off */ }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = kept === "dark" || kept === "light" ? kept : dark ? "dark" : "light";
})();
