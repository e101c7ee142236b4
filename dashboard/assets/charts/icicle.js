// The icicle of calls, drawn from data (components/panels/call_tree.py), by pointer and keyboard: one box is the current
// one, arrows walk, Enter makes it the root, Escape leads back.
(function () {
  const PARENT = 0, WIDTH = 1, NAMES = 2, SIZES = 3, DETAIL = 4, TARGET = 5, COLOR = 6;
  const LEAST_PX = 0.5, PAD_PX = 7, SMALLEST_NAME_PX = 22, FONT_PX = 12, INK = "#10202C";
  const known = new WeakMap();
  const ruler = document.createElement("canvas").getContext("2d");
  let picks = 0, hovered = null;

  const hostOf = (figure) => figure && figure.querySelector(".icicle-boxes");
  const figureOf = (target) => target && target.closest && target.closest("figure.icicle[tabindex]");
  const state = (figure) => known.get(hostOf(figure));

  // Where each box lies: shares of the width, and its row. The largest call is the first of its row.
  function placed({ boxes, n_levels }) {
    const below = boxes.map(() => []), places = [];
    boxes.forEach((box, i) => { if (box[PARENT] >= 0) below[box[PARENT]].push(i); });
    (function put(i, from, to, depth) {
      places[i] = { i, from, to, depth };
      if (depth + 1 >= n_levels) return;
      let x = from;
      for (const child of below[i].sort((a, b) => boxes[b][WIDTH] - boxes[a][WIDTH])) {
        const right = x + (to - from) * boxes[child][WIDTH] / Math.max(boxes[i][WIDTH], 1);
        put(child, x, right, depth + 1);
        x = right;
      }
    })(0, 0, 1, 0);
    return places;
  }

  const sans = () => getComputedStyle(document.body).fontFamily;
  // The longest texts that fit; a name is cut where not even the shortest does.
  function words(box, wide) {
    const fitting = (texts) => texts.find((text) => ruler.measureText(text).width <= wide - 2 * PAD_PX);
    if (wide < SMALLEST_NAME_PX) return ["", ""];
    return [fitting(box[NAMES]) || box[NAMES][box[NAMES].length - 1], fitting(box[SIZES]) || ""];
  }

  function line(kind, text) {
    const made = document.createElement("span");
    made.className = kind;
    made.textContent = text;
    return made;
  }

  function draw(host) {
    const its = known.get(host), { data, places } = its, wide = host.clientWidth;
    if (!wide) return;
    its.wide = wide;
    ruler.font = `500 ${FONT_PX}px ${sans()}`;
    const made = [];
    for (const { i, from, to, depth } of places) {
      if ((to - from) * wide < LEAST_PX) continue;
      const box = data.boxes[i], node = document.createElement("div"), [name, size] = words(box, (to - from) * wide);
      node.className = "box";
      node.dataset.box = i;
      node.style.cssText = `left:${100 * from}%;width:calc(${100 * (to - from)}% - 1px);top:${depth * data.row_px}px;height:${data.row_px - 1}px;--tint:${box[COLOR]}`;
      if (name) node.append(line("box-name", name), line("box-size", size));
      made.push(node);
    }
    host.style.height = `${data.n_rows * data.row_px}px`;
    host.replaceChildren(...made);
    marked(host.closest("figure"));
  }

  const resized = new ResizeObserver(function (entries) {
    for (const { target } of entries) {
      const its = known.get(target);
      if (its && its.wide !== target.clientWidth) draw(target);
    }
  });

  function take(host) {
    const text = host.dataset.icicle, its = known.get(host);
    if (!text || (its && its.text === text)) return;
    const data = JSON.parse(text), root = String(data.boxes[data.n_callers][TARGET]), figure = host.closest("figure");
    if (!its) resized.observe(host);
    known.set(host, { text, data, places: placed(data).filter(Boolean) });
    // With another root, that becomes the current box.
    if (figure.dataset.root !== root) Object.assign(figure.dataset, { root, box: data.n_callers });
    draw(host);
    if (figure === document.activeElement) show(figure, Number(figure.dataset.box));
  }

  // Before the next frame is drawn.
  new MutationObserver(function (changes) {
    for (const { type, target, addedNodes } of changes) {
      if (type === "attributes") { take(target); continue; }
      for (const node of addedNodes) {
        if (node.nodeType !== 1) continue;
        if (node.dataset.icicle !== undefined) take(node);
        for (const inner of node.querySelectorAll("[data-icicle]")) take(inner);
      }
    }
  }).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-icicle"] });

  // -------------------------------------------------------------------------- the current box
  const current = (figure) => state(figure).places.find(({ i }) => i === Number(figure.dataset.box)) || state(figure).places.find(({ i }) => i === state(figure).data.n_callers);

  function marked(figure) {
    const at = figure === document.activeElement ? current(figure).i : null;
    for (const node of hostOf(figure).children) node.classList.toggle("is-current", Number(node.dataset.box) === at);
  }

  function show(figure, i) {
    figure.dataset.box = i;
    marked(figure);
    const said = figure.parentElement.querySelector(".icicle-words"), box = state(figure).data.boxes[current(figure).i];
    if (said) said.textContent = `${box[NAMES][0]} · ${box[DETAIL]}`;
  }

  function pick(figure, i) {
    picks += 1;
    window.vramscope.hideTip();
    dash_clientside.set_props(`${hostOf(figure).id}-pick`, { data: { node: state(figure).data.boxes[i][TARGET], picks } });
  }

  function next(figure, key) {
    const { data, places } = state(figure), at = current(figure);
    const inOrder = (found) => found.sort((a, b) => a.from - b.from);
    if (key === "ArrowDown") return inOrder(places.filter(({ i }) => data.boxes[i][PARENT] === at.i))[0];
    if (key === "ArrowUp") return places.find(({ i }) => i === data.boxes[at.i][PARENT]);
    const row = inOrder(places.filter(({ depth }) => depth === at.depth));
    return row[row.indexOf(at) + (key === "ArrowLeft" ? -1 : 1)];
  }

  document.addEventListener("keydown", function (event) {
    const figure = figureOf(event.target);
    if (!figure || figure !== event.target || event.ctrlKey || event.metaKey || event.altKey || !state(figure)) return;
    const above = state(figure).data.n_callers - 1;
    if (event.key.startsWith("Arrow")) {
      const to = next(figure, event.key);
      if (to) show(figure, to.i);
    } else if (event.key === "Enter") pick(figure, current(figure).i);
    else if ((event.key === "Escape" || event.key === "Backspace") && above >= 0) pick(figure, above);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }, true);
  for (const kind of ["focusin", "focusout"]) {
    document.addEventListener(kind, function (event) {
      const figure = figureOf(event.target);
      if (figure && state(figure)) requestAnimationFrame(() => (figure === document.activeElement ? show(figure, current(figure).i) : marked(figure)));
    });
  }

  // ------------------------------------------------------------------------------- pointer
  const boxAt = (event) => event.target.closest && event.target.closest(".icicle-boxes > .box");
  document.addEventListener("click", function (event) {
    const node = boxAt(event);
    if (node) pick(figureOf(node), Number(node.dataset.box));
  });
  document.addEventListener("pointermove", function (event) {
    const node = boxAt(event);
    if (!node) { if (hovered) window.vramscope.hideTip(); hovered = null; return; }
    hovered = node;
    const box = state(figureOf(node)).data.boxes[Number(node.dataset.box)];
    window.vramscope.showTip(event, [["tip-name", box[NAMES][0]], ["tip-size", box[DETAIL]]]);
  });

  // The same picture on a canvas, for a file.
  function paint(context, host, left, top) {
    const { data, places } = known.get(host), wide = host.clientWidth, family = sans();
    context.textAlign = "left";
    context.textBaseline = "top";
    for (const { i, from, to, depth } of places) {
      const box = data.boxes[i], x = left + from * wide, y = top + depth * data.row_px, w = (to - from) * wide - 1;
      if (w < LEAST_PX) continue;
      const [name, size] = words(box, w + 1);
      context.save();
      context.beginPath();
      context.rect(x, y, w, data.row_px - 1);
      context.clip();
      context.fillStyle = box[COLOR];
      context.fillRect(x, y, w, data.row_px - 1);
      context.fillStyle = INK;
      context.font = `500 ${FONT_PX}px ${family}`;
      context.fillText(name, x + PAD_PX, y + 6);
      context.font = `${FONT_PX}px ${family}`;
      context.fillText(size, x + PAD_PX, y + 21);
      context.restore();
    }
  }

  // The address has the root.
  function rootChosen(root) {
    window.vramscope.store.remember({ root: root || null });
    return window.dash_clientside.no_update;
  }

  function icicleRows(host) {
    const { data: { boxes }, places } = known.get(host);
    return [["depth", "call", "bytes", "in words"], ...places.map(({ i, depth }) => [depth, boxes[i][NAMES][0], boxes[i][WIDTH], boxes[i][DETAIL]])];
  }
  window.vramscope = Object.assign(window.vramscope || {}, { paintIcicle: paint, icicleRows });
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, { rootChosen });
})();
