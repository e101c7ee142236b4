// The definition of a word, on hover after a moment and on focus at once: the text is in data-means.
(function () {
  const WAIT_MS = 250, GAP_PX = 8;
  let shown = null, waiting = null;
  const meant = (target) => (target && target.closest ? target.closest("[data-means]") : null);

  function tip() {
    let box = document.getElementById("definition");
    if (!box) {
      box = Object.assign(document.createElement("div"), { id: "definition", className: "definition", hidden: true });
      box.setAttribute("role", "tooltip");
      document.body.append(box);
    }
    return box;
  }

  function hide() {
    clearTimeout(waiting);
    if (!shown) return;
    shown.removeAttribute("aria-describedby");
    shown = null;
    tip().hidden = true;
  }

  // Above the word, or below it where there is no room.
  function show(element) {
    if (element === shown || !element.isConnected) return;
    hide();
    shown = element;
    const box = tip(), at = element.getBoundingClientRect();
    box.textContent = element.dataset.means;
    box.hidden = false;
    element.setAttribute("aria-describedby", box.id);
    const left = at.left + at.width / 2 - box.offsetWidth / 2, above = at.top - box.offsetHeight - GAP_PX;
    box.style.left = `${Math.max(GAP_PX, Math.min(left, document.documentElement.clientWidth - box.offsetWidth - GAP_PX))}px`;
    box.style.top = `${above < GAP_PX ? at.bottom + GAP_PX : above}px`;
  }

  document.addEventListener("pointerover", function (event) {
    const element = meant(event.target);
    clearTimeout(waiting);
    if (element) waiting = setTimeout(() => show(element), WAIT_MS);
    else if (shown !== document.activeElement) hide();
  });
  document.addEventListener("focusin", function (event) {
    const element = meant(event.target);
    if (element) show(element); else hide();
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" || shown && !shown.isConnected) hide(); });
  addEventListener("scroll", hide, { capture: true, passive: true });
})();
