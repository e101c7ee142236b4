// @ts-check
// Links within a run keep what the reader looks at.
(function () {
  const CARRIED = ["rank", "device", "restart", "axis", "t0", "t1", "at", "sel"];
  const params = () => new URLSearchParams(location.search);
  // The recording that the timeline shows, and the instant with which its page was laid out.
  let recording = {}, laidOut = "";

  // A link was written when the page was laid out, so what it repeats of that moment is old; what it says of its own,
  // such as the instant of the peak, stays.
  function carried(link) {
    const to = new URL(link.href, location.href), here = params(), there = to.searchParams;
    if (to.origin !== location.origin || !there.get("run") || there.get("run") !== here.get("run")) return null;
    const own = (name) => there.get(name) || "";
    if (["rank", "device", "restart", "axis"].some((name) => there.has(name) && own(name) !== (here.get(name) || String(recording[name] ?? "")))) return null;
    const names = to.pathname === location.pathname ? [...CARRIED, "b0", "b1"] : [...CARRIED];
    if (link.closest(".segments")) names.push("q", "group");
    if (link.closest("#menu")) there.delete("at");
    const isOwnInstant = there.has("at") && own("at") !== laidOut;
    for (const name of names) {
      if (name === "at" && isOwnInstant) continue;
      if (here.get(name)) there.set(name, here.get(name));
      else there.delete(name);
    }
    // The zoom was that of another instant: it moves to the one that the link names.
    return { to, isToReveal: isOwnInstant && own("at") !== (here.get("at") || "") };
  }

  // The instant of a link that shows the page in view as it is, at another instant; null for every other link. Dash
  // would not lay that page out again: of the instants since its last layout it knows nothing.
  function instantOf(to) {
    const rest = (url) => { const query = new URLSearchParams(url.search); query.delete("at"); query.sort(); return `${url.pathname}?${query}`; };
    return to.searchParams.has("at") && rest(to) === rest(location) ? Number(to.searchParams.get("at")) : null;
  }

  const internal = (target) => target && target.closest && target.closest('a[href^="/"]:not([download]):not([target])');
  // A link within the dashboard shows its page without loading the browser's.
  document.addEventListener("click", function (event) {
    const link = internal(event.target);
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const target = document.querySelector(".track") && !link.closest("[data-own-view]") ? carried(link) : null;
    if (target && target.to.href !== link.href) {
      window.vramscope.timeline.revealNext(target.isToReveal);
      event.stopPropagation();
    }
    event.preventDefault();
    const instant = target && instantOf(target.to);
    if (instant !== null && window.vramscope.timeline.goTo(instant)) return;
    history.pushState({}, "", target ? target.to : link.href);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  }, true);
  // Opened in a new tab, it keeps the same.
  document.addEventListener("auxclick", (event) => {
    const link = internal(event.target), target = link && carried(link);
    if (target) link.href = target.to.href;
  }, true);

  const shows = (of) => { recording = of; };
  const laidOutAt = (at) => { laidOut = at; };
  window.vramscope = Object.assign(window.vramscope || {}, { links: { shows, laidOutAt } });
})();
