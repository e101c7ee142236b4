// @ts-check
// The bar of a narrow page scrolls sideways: the page that is open stays in view.
(function () {
  const isNarrow = matchMedia("(max-width: 800px)");
  function show() {
    if (isNarrow.matches) document.querySelector("#menu .here")?.scrollIntoView({ inline: "center", block: "nearest" });
  }
  isNarrow.addEventListener("change", show);
  new MutationObserver(function (changes) {
    if (changes.some(({ target }) => target instanceof Element && target.closest("#menu"))) show();
  }).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["class"] });
})();
