// The timeline as PNG or SVG: the same drawing, with title, run, legend and units.
(function () {
  const HEAD = 58;
  const NAMES = { allocated: "Allocated", active: "Active", reserved: "Reserved", device_used: "Device used", capacity: "Capacity" };
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
  const round = (n) => Math.round(n * 100) / 100;

  // What the drawing asks of a canvas, written down as SVG.
  class Svg {
    fillStyle = "#000"; strokeStyle = "#000"; lineWidth = 1; globalAlpha = 1; font = "11px sans-serif"; textAlign = "left"; textBaseline = "alphabetic"; dash = []; depth = 0;

    constructor(width, height) {
      this.size = [width, height];
      this.parts = [];
      this.clips = 0;
      this.path = "";
      this.stack = [];
      this.ruler = document.createElement("canvas").getContext("2d");
    }
    save() { this.stack.push({ fillStyle: this.fillStyle, strokeStyle: this.strokeStyle, lineWidth: this.lineWidth, globalAlpha: this.globalAlpha, font: this.font, textAlign: this.textAlign, textBaseline: this.textBaseline, dash: this.dash, depth: this.depth }); }
    restore() {
      const before = this.stack.pop();
      while (this.depth > before.depth) { this.parts.push("</g>"); this.depth -= 1; }
      Object.assign(this, before);
    }
    beginPath() { this.path = ""; }
    moveTo(x, y) { this.path += `M${round(x)} ${round(y)}`; }
    lineTo(x, y) { this.path += `L${round(x)} ${round(y)}`; }
    rect(x, y, w, h) { this.path += `M${round(x)} ${round(y)}h${round(w)}v${round(h)}h${round(-w)}z`; }
    // A whole circle: the drawing has no other arcs.
    arc(x, y, r) { this.path += `M${round(x - r)} ${round(y)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`; }
    clip() {
      this.clips += 1;
      this.depth += 1;
      this.parts.push(`<clipPath id="c${this.clips}"><path d="${this.path}"/></clipPath><g clip-path="url(#c${this.clips})">`);
    }
    fill() { this.parts.push(`<path d="${this.path}" fill="${this.fillStyle}" fill-opacity="${this.globalAlpha}"/>`); }
    stroke() { this.parts.push(`<path d="${this.path}" fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}" stroke-dasharray="${this.dash.join(" ")}"/>`); }
    fillRect(x, y, w, h) { this.parts.push(`<rect x="${round(x)}" y="${round(y)}" width="${round(Math.max(w, 0))}" height="${round(Math.max(h, 0))}" fill="${this.fillStyle}" fill-opacity="${this.globalAlpha}"/>`); }
    group(transform) { this.depth += 1; this.parts.push(`<g transform="${transform}">`); }
    translate(x, y) { this.group(`translate(${round(x)} ${round(y)})`); }
    rotate(radians) { this.group(`rotate(${round(radians * 180 / Math.PI)})`); }
    setLineDash(dash) { this.dash = dash; }
    measureText(text) { this.ruler.font = this.font; return this.ruler.measureText(text); }
    fillText(text, x, y) { this.write(text, x, y, `fill="${this.fillStyle}"`); }
    strokeText(text, x, y) { this.write(text, x, y, `fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}" stroke-linejoin="round"`); }
    write(text, x, y, look) {
      const anchor = { left: "start", center: "middle", right: "end" }[this.textAlign], line = { top: "hanging", middle: "central" }[this.textBaseline] || "auto";
      const [, weight, size] = /^(\d{3} )?([\d.]+)px/.exec(this.font) || [null, "", 11];
      this.parts.push(`<text x="${round(x)}" y="${round(y)}" font-size="${size}" font-weight="${(weight || "400").trim()}" text-anchor="${anchor}" dominant-baseline="${line}" ${look}>${escaped(text)}</text>`);
    }
    drawImage(source, x, y, w, h) { this.parts.push(`<image href="${source.toDataURL("image/png")}" x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}" preserveAspectRatio="none" style="image-rendering:pixelated"/>`); }
    blob() {
      const [width, height] = this.size, { sans } = window.vramscope.draw.theme({});
      const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${escaped(sans)}">${this.parts.join("")}</svg>`;
      return new Blob([text], { type: "image/svg+xml" });
    }
  }

  // The drawing moved down by the height of the heading.
  function moved(context, by) {
    return new Proxy(context, {
      get(target, /** @type {string} */ name) {
        const value = target[name];
        if (typeof value !== "function") return value;
        if (["moveTo", "lineTo", "rect", "arc", "fillRect"].includes(name)) return (x, y, ...rest) => value.call(target, x, y + by, ...rest);
        if (["fillText", "strokeText", "drawImage"].includes(name)) return (what, x, y, ...rest) => value.call(target, what, x, y + by, ...rest);
        return value.bind(target);
      },
      set(target, name, value) { target[name] = value; return true; },
    });
  }

  function entries(track) {
    const { colors, "phase.kind": kinds } = track.data.whole, t = window.vramscope.draw.theme(colors);
    const found = track.of.parts ? Object.entries(colors.part).map(([name, color]) => [name.replace("_", " "), color]) : track.figure.classList.contains("bands") ? [] : track.shown.map((name) => [NAMES[name], name === "allocated" || name === "active" ? t.ink : name === "reserved" ? t.reserved : colors.quantity[name]]);
    const list = document.getElementById(`${track.figure.id.split("-")[0]}-key`);
    for (const item of list && track.figure.classList.contains("bands") ? list.children : []) found.push([item.textContent, getComputedStyle(item.querySelector(".swatch")).backgroundColor]);
    for (const kind of new Set(kinds)) if (colors.phase[kind]) found.push([window.vramscope.timeline.phaseName(kind), colors.phase[kind]]);
    return found;
  }

  function heading(context, track, width, t) {
    const title = (track.figure.closest("[aria-label].panel") || track.figure).getAttribute("aria-label");
    const run = document.querySelector(".run-name"), facts = document.querySelector(".facts");
    context.textAlign = "left";
    context.textBaseline = "top";
    context.fillStyle = t.ink;
    context.font = `600 14px ${t.sans}`;
    context.fillText(`${title}: ${run ? run.textContent : ""}`, 16, 10);
    context.font = `11px ${t.sans}`;
    context.fillStyle = t.ink3;
    context.textAlign = "right";
    context.fillText((facts ? facts.textContent : "").slice(0, 90), width - 14, 13);
    context.textAlign = "left";
    let x = 16;
    for (const [name, color] of entries(track)) {
      context.fillStyle = color;
      context.fillRect(x, 40, 12, 6);
      context.fillStyle = t.ink2;
      context.fillText(name, x + 17, 37);
      x += 17 + context.measureText(name).width + 16;
    }
  }

  function compose(context, track, width, height) {
    const { timeline: T, draw: D } = window.vramscope, t = D.theme(track.data.whole.colors);
    context.fillStyle = t.surface;
    context.fillRect(0, 0, width, height + HEAD);
    heading(context, track, width, t);
    const below = moved(context, HEAD), raster = track.figure.querySelector("canvas.raster");
    const its = raster && window.vramscope.rasterOf(track.figure.id.replace(/-frame$/, ""));
    if (its) {
      const { plot } = track.place, now = T.boxOf(track.figure), sx = plot.width / (now.b - now.a), sy = plot.height / (now.hi - now.lo);
      D.begin(below, plot);
      below.drawImage(raster, plot.left + (its.box.a - now.a) * sx, plot.top + (now.hi - its.box.hi) * sy, (its.box.b - its.box.a) * sx, (its.box.hi - its.box.lo) * sy);
      below.restore();
    }
    T.scene(below, track, t);
  }

  function save(track, format) {
    const width = track.figure.clientWidth, height = track.figure.clientHeight, link = document.createElement("a");
    const run = new URLSearchParams(location.search).get("run") || "run";
    link.download = `${run}-timeline.${format}`.toLowerCase().replace(/[^a-z0-9.-]+/g, "-");
    if (format !== "png") {
      const context = new (format === "svg" ? Svg : window.vramscope.Pdf)(width, height + HEAD);
      compose(context, track, width, height);
      link.href = URL.createObjectURL(context.blob());
    } else {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [2 * width, 2 * (height + HEAD)];
      const context = canvas.getContext("2d");
      context.scale(2, 2);
      context.imageSmoothingEnabled = false;
      compose(context, track, width, height);
      link.href = canvas.toDataURL("image/png");
    }
    link.click();
  }

  function offer(track) {
    if (track.figure.querySelector(":scope > .saves")) return;
    const box = document.createElement("div");
    box.className = "saves";
    for (const format of ["png", "svg", "pdf"]) {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "save", textContent: format.toUpperCase(), title: `Save the figure as ${format.toUpperCase()}` });
      button.setAttribute("aria-label", button.title);
      button.addEventListener("click", (event) => { event.stopPropagation(); save(track, format); });
      for (const kind of ["pointerdown", "pointerup", "dblclick"]) button.addEventListener(kind, (event) => event.stopPropagation());
      box.append(button);
    }
    box.append(window.vramscope.numbers(() => window.vramscope.timeline.rows(track)));
    track.figure.append(box);
  }

  window.vramscope = Object.assign(window.vramscope || {}, { offerTimeline: offer, Svg });
})();
