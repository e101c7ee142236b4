// What the theme adds while it runs: its buttons of code are no landmarks, and what scrolls takes the keyboard's focus.
function mend() {
  for (const bar of document.querySelectorAll(".md-code__nav:not([role])")) bar.setAttribute("role", "none");
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap"))
    table.tabIndex = table.scrollWidth > table.clientWidth ? 0 : -1;
}
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", mend);
mend();
