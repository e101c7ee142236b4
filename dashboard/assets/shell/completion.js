// The search of allocations goes on while it is typed: a list under the box, chosen by arrows, Enter, Tab or a click.
(function () {
  const RESTED_MS = 90, GAP_PX = 4, LEAST_PX = 340;
  let found = null, at = -1, timer = null, control = null;

  const boxOf = (target) => (target && target.closest ? target.closest("input#al-search-box, #al-search-box input") : null);
  const isOpen = () => Boolean(found);

  function list() {
    let made = document.getElementById("completion");
    if (!made) {
      made = Object.assign(document.createElement("ul"), { id: "completion", className: "completion", hidden: true });
      made.setAttribute("role", "listbox");
      made.setAttribute("aria-label", "How the search can go on");
      document.body.append(made);
    }
    return made;
  }

  function close() {
    clearTimeout(timer);
    if (control) control.abort();
    control = null;
    if (!found) return;
    found.box.removeAttribute("aria-activedescendant");
    found.box.setAttribute("aria-expanded", "false");
    [found, at] = [null, -1];
    list().hidden = true;
  }

  // -------------------------------------------------------------------------------- asking
  function askSoon(box) {
    clearTimeout(timer);
    timer = setTimeout(() => ask(box), RESTED_MS);
  }
  async function ask(box) {
    const here = new URLSearchParams(location.search), query = new URLSearchParams({ text: box.value, caret: box.selectionEnd ?? box.value.length });
    for (const name of ["run", "rank", "device", "restart"]) if (here.get(name)) query.set(name, here.get(name));
    if (control) control.abort();
    const mine = (control = new AbortController());
    try {
      const answer = await fetch(`/api/complete?${query}`, { signal: mine.signal });
      if (!answer.ok) throw new Error(String(answer.status));
      const { start, end, options } = await answer.json();
      if (mine !== control || document.activeElement !== box) return;
      // What is written in full already needs no list.
      if (!options.length || options.length === 1 && options[0][0] === box.value.slice(start, end)) close();
      else show({ box, start, end, options });
    } catch (error) {
      if (error.name !== "AbortError") close();
    }
  }

  // ------------------------------------------------------------------------------- showing
  function show(its) {
    [found, at] = [its, -1];
    const box = list();
    box.replaceChildren(...its.options.map(function ([text, meaning], i) {
      const item = Object.assign(document.createElement("li"), { id: `completion-${i}` }), name = document.createElement("code");
      item.setAttribute("role", "option");
      name.dir = "auto";
      name.textContent = text;
      item.append(name);
      if (meaning) item.append(Object.assign(document.createElement("span"), { textContent: meaning }));
      return item;
    }));
    box.hidden = false;
    const input = (its.box.closest(".search") || its.box).getBoundingClientRect(), wide = Math.max(input.width, LEAST_PX);
    const left = Math.max(GAP_PX, Math.min(input.left, document.documentElement.clientWidth - wide - GAP_PX));
    Object.assign(box.style, { left: `${left}px`, top: `${input.bottom + GAP_PX}px`, minWidth: `${wide}px` });
    its.box.setAttribute("aria-expanded", "true");
    mark();
  }

  function mark() {
    const items = [...list().children];
    items.forEach((item, i) => item.setAttribute("aria-selected", String(i === at)));
    if (items[at]) {
      found.box.setAttribute("aria-activedescendant", items[at].id);
      items[at].scrollIntoView({ block: "nearest" });
    } else found.box.removeAttribute("aria-activedescendant");
  }

  // React learns of the letters as if they were typed.
  const write = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  function take(i) {
    const { box, start, end, options } = found, [text] = options[i], goesOn = /[:<>]$/.test(text);
    const rest = box.value.slice(end), put = goesOn || rest.startsWith(" ") ? text : `${text} `;
    close();
    write.call(box, box.value.slice(0, start) + put + rest);
    box.setSelectionRange(start + put.length, start + put.length);
    box.dispatchEvent(new Event("input", { bubbles: true }));
    if (!goesOn) clearTimeout(timer);
  }

  // ------------------------------------------------------------------------------- reading
  document.addEventListener("focusin", function (event) {
    const box = boxOf(event.target);
    if (!box) return;
    const role = { role: "combobox", "aria-autocomplete": "list", "aria-haspopup": "listbox", "aria-controls": list().id, "aria-expanded": "false", autocomplete: "off" };
    for (const [name, value] of Object.entries(role)) box.setAttribute(name, value);
  });
  document.addEventListener("input", function (event) {
    const box = boxOf(event.target);
    if (box) askSoon(box);
  });
  document.addEventListener("focusout", (event) => { if (boxOf(event.target)) close(); });
  document.addEventListener("keydown", function (event) {
    const box = boxOf(event.target), step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!box || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (!isOpen()) {
      if (event.key !== "ArrowDown") return;
      event.preventDefault();
      ask(box);
      return;
    }
    const n = found.options.length;
    if (step) at = (at + step + (at < 0 && step < 0 ? 1 : 0) + n) % n;
    else if (event.key === "Escape") close();
    else if (at >= 0 && (event.key === "Enter" || event.key === "Tab")) take(at);
    else return;
    // The box itself would be emptied by Escape, and left by Tab.
    event.preventDefault();
    event.stopPropagation();
    if (step) mark();
  }, true);
  document.addEventListener("pointerdown", function (event) {
    const item = event.target.closest && event.target.closest("#completion [role=option]");
    if (!item || !found) return;
    event.preventDefault();
    take([...list().children].indexOf(item));
  });
  // Whoever goes to the picture has typed enough: the list would cover it.
  document.addEventListener("pointermove", (event) => { if (found && !boxOf(event.target) && !list().contains(event.target)) close(); }, { passive: true });
  for (const kind of ["scroll", "resize"]) addEventListener(kind, (event) => { if (event.target !== list()) close(); }, { capture: true, passive: true });
})();
