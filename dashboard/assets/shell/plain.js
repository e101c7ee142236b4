// The elements of parts that no callback changes (server/plain.py), made from data. Texts stay texts.
(function () {
  const made = new WeakMap();

  function element(part) {
    if (typeof part === "string") return document.createTextNode(part);
    const [tag, attributes, children] = part, node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "style") node.style.cssText = value; else node.setAttribute(name, value);
    }
    node.append(...children.map(element));
    return node;
  }

  // Dash may use the frame for another part later, with content of its own.
  function fill(frame) {
    for (const old of made.get(frame) || []) old.remove();
    const nodes = frame.dataset.plain ? JSON.parse(frame.dataset.plain).map(element) : [];
    made.set(frame, nodes);
    frame.prepend(...nodes);
  }

  // Before the next frame is drawn, so that none shows the part without its content.
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
    frames.forEach(fill);
  }).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-plain"] });
})();
