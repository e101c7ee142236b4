// The elements of parts that no callback changes (server/plain.py), made from data. Texts stay texts.
(function () {
  // What was made last in a frame or an element: the data, and a node for each.
  const made = new WeakMap(), NOTHING = { parts: [], nodes: [] };

  function element(part) {
    if (typeof part === "string") return document.createTextNode(part);
    const node = document.createElement(part[0]);
    attributes(node, {}, part[1]);
    fill(node, part[2]);
    return node;
  }

  function attributes(node, old, now) {
    for (const name of Object.keys(old)) if (!(name in now)) node.removeAttribute(name);
    for (const [name, value] of Object.entries(now)) {
      if (old[name] === value) continue;
      if (name === "style") node.style.cssText = value; else node.setAttribute(name, value);
    }
  }

  function renewed(node, old, now) {
    if (node && typeof old === "string" && typeof now === "string") {
      if (old !== now) node.data = now;
      return node;
    }
    if (node && typeof old !== "string" && old[0] === now[0]) {
      attributes(node, old[1], now[1]);
      fill(node, now[2]);
      return node;
    }
    const fresh = element(now);
    if (node) node.replaceWith(fresh);
    return fresh;
  }

  // What is as before stays as it is, as with Dash: the focus, what lies under the pointer, what other scripts added.
  function fill(frame, parts) {
    const before = made.get(frame) || NOTHING, nodes = parts.map((part, i) => renewed(before.nodes[i], before.parts[i], part));
    for (const old of before.nodes.slice(parts.length)) old.remove();
    let last = null;
    nodes.forEach(function (node, i) {
      if (i >= before.nodes.length) { if (last) last.after(node); else frame.prepend(node); }
      if (node.parentNode === frame) last = node;
    });
    made.set(frame, { parts, nodes });
  }

  // Before the next frame is drawn, so that none shows the part without its content. Dash may use the frame for
  // another part later, with content of its own.
  new MutationObserver(function (changes) {
    const frames = new Set();
    for (const { type, target, addedNodes } of changes) {
      if (type === "attributes") frames.add(target);
      for (const node of addedNodes) {
        if (node.nodeType !== 1) continue;
        if (node.dataset.plain !== undefined && !made.has(node)) frames.add(node);
        for (const inner of node.querySelectorAll("[data-plain]")) if (!made.has(inner)) frames.add(inner);
      }
    }
    for (const frame of frames) fill(frame, JSON.parse(frame.dataset.plain || "[]"));
  }).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-plain"] });
})();
