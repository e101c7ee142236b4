// What a drawing asks of a canvas, written down as a page of PDF: lines and letters stay such in print.
(function () {
  const round = (n) => Math.round(n * 100) / 100;
  const LOOK = ["fillStyle", "strokeStyle", "lineWidth", "globalAlpha", "font", "textAlign", "textBaseline", "dash"];
  // Helvetica, which every reader of PDF has, lacks these; what else it lacks is a question mark.
  const WORDS = { "−": "-", "≈": "~", "→": "->", "←": "<-", "≥": ">=", "≤": "<=", "◂": "<", "…": "\x85", "–": "\x96", "—": "\x97", "’": "\x92", "“": "\x93", "”": "\x94", "•": "\x95", "↻": "" };
  const latin = (text) => [...text].map((letter) => WORDS[letter] || (letter.codePointAt(0) < 256 ? letter : "?")).join("").replace(/[\\()]/g, "\\$&");
  const bytes = (text) => Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  const QUARTER = 0.5523;

  class Pdf {
    fillStyle = "#000"; strokeStyle = "#000"; lineWidth = 1; globalAlpha = 1; font = "11px sans-serif"; textAlign = "left"; textBaseline = "alphabetic"; dash = [];

    constructor(width, height) {
      this.size = [width, height];
      this.parts = [`1 0 0 -1 0 ${height} cm`];
      this.path = "";
      this.stack = [];
      this.images = [];
      this.alphas = new Set();
      this.ruler = document.createElement("canvas").getContext("2d");
    }
    put(...words) { this.parts.push(words.map((word) => (typeof word === "number" ? round(word) : word)).join(" ")); }
    save() { this.put("q"); this.stack.push(LOOK.map((name) => this[name])); }
    restore() { this.put("Q"); this.stack.pop().forEach((value, i) => { this[LOOK[i]] = value; }); }
    beginPath() { this.path = ""; }
    moveTo(x, y) { this.path += `${round(x)} ${round(y)} m `; }
    lineTo(x, y) { this.path += `${round(x)} ${round(y)} l `; }
    rect(x, y, w, h) { this.path += `${round(x)} ${round(y)} ${round(w)} ${round(h)} re `; }
    // A whole circle: the drawings have no other arcs.
    arc(x, y, r) {
      const k = QUARTER * r, curve = (...at) => { this.path += `${at.map(round).join(" ")} c `; };
      this.moveTo(x + r, y);
      curve(x + r, y + k, x + k, y + r, x, y + r);
      curve(x - k, y + r, x - r, y + k, x - r, y);
      curve(x - r, y - k, x - k, y - r, x, y - r);
      curve(x + k, y - r, x + r, y - k, x + r, y);
    }
    translate(x, y) { this.put(1, 0, 0, 1, x, y, "cm"); }
    rotate(angle) { this.put([Math.cos(angle), Math.sin(angle), -Math.sin(angle), Math.cos(angle)].map((n) => n.toFixed(5)).join(" "), 0, 0, "cm"); }
    scale(x, y) { this.put(x, 0, 0, y, 0, 0, "cm"); }
    clip() { this.put(`${this.path}W n`); }
    // A canvas knows every way in which a color is written.
    color(value, sign) {
      this.ruler.fillStyle = "#000";
      this.ruler.fillStyle = value;
      const written = String(this.ruler.fillStyle), hex = /^#(..)(..)(..)/.exec(written), rgba = /[\d.]+/g;
      const [r, g, b, a] = hex ? [...hex.slice(1).map((pair) => parseInt(pair, 16)), 1] : written.match(rgba).map(Number);
      const alpha = Math.round(100 * a * this.globalAlpha);
      this.alphas.add(alpha);
      this.put(`/G${alpha} gs`, ...[r, g, b].map((part) => part / 255), sign);
    }
    fill() { this.color(this.fillStyle, "rg"); this.put(`${this.path}f`); }
    stroke() {
      this.color(this.strokeStyle, "RG");
      this.put(this.lineWidth, "w", `[${this.dash.join(" ")}] 0 d`, `${this.path}S`);
    }
    fillRect(x, y, w, h) { this.color(this.fillStyle, "rg"); this.put(x, y, w, h, "re f"); }
    clearRect() {}
    setLineDash(dash) { this.dash = dash; }
    look() {
      const [, weight, size] = /^(\d{3} )?([\d.]+)px/.exec(this.font) || [null, "", "11"];
      this.ruler.font = `${weight || "400 "}${size}px Helvetica, Arial, "Liberation Sans", sans-serif`;
      return { size: Number(size), face: Number(weight) >= 600 ? "F2" : "F1" };
    }
    measureText(text) { this.look(); return this.ruler.measureText(text); }
    write(text, x, y, mode) {
      const { size, face } = this.look(), wide = this.ruler.measureText(text).width;
      const left = x - { left: 0, center: wide / 2, right: wide }[this.textAlign], down = { top: 0.76, middle: 0.36, bottom: -0.22 }[this.textBaseline] || 0;
      this.put("BT", `/${face}`, size, "Tf", mode, "Tr 1 0 0 -1", left, y + down * size, "Tm", `(${latin(text)})`, "Tj ET");
    }
    fillText(text, x, y) { this.color(this.fillStyle, "rg"); this.write(text, x, y, 0); }
    strokeText(text, x, y) { this.color(this.strokeStyle, "RG"); this.put(this.lineWidth, "w 1 j [] 0 d"); this.write(text, x, y, 1); }
    // Bands and maps are pixels; on white, as PDF keeps JPEG without its transparency.
    drawImage(source, x, y, w, h) {
      const flat = document.createElement("canvas"), context = flat.getContext("2d");
      [flat.width, flat.height] = [source.width, source.height];
      context.fillStyle = "#fff";
      context.fillRect(0, 0, flat.width, flat.height);
      context.drawImage(source, 0, 0);
      this.images.push({ width: flat.width, height: flat.height, data: atob(flat.toDataURL("image/jpeg", 0.95).split(",")[1]) });
      this.put("q", w, 0, 0, -h, x, y + h, "cm", `/I${this.images.length}`, "Do Q");
    }
    blob() {
      const [width, height] = this.size, objects = [], add = (text) => objects.push(text);
      const stream = (head, data) => `<< ${head} /Length ${data.length} >>\nstream\n${data}\nendstream`;
      const font = (name) => `<< /Type /Font /Subtype /Type1 /BaseFont /${name} /Encoding /WinAnsiEncoding >>`;
      const states = [...this.alphas].map((alpha) => `/G${alpha} << /ca ${alpha / 100} /CA ${alpha / 100} >>`).join(" ");
      const pictures = this.images.map((_, i) => `/I${i + 1} ${7 + i} 0 R`).join(" ");
      add("<< /Type /Catalog /Pages 2 0 R >>");
      add("<< /Type /Pages /Kids [3 0 R] /Count 1 >>");
      // A pixel of the page is three quarters of a point.
      add(`<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${round(0.75 * width)} ${round(0.75 * height)}] /Contents 4 0 R /Resources << /Font << /F1 5 0 R /F2 6 0 R >> /ExtGState << ${states} >> /XObject << ${pictures} >> >> >>`);
      add(stream("", `0.75 0 0 0.75 0 0 cm\n${this.parts.join("\n")}`));
      add(font("Helvetica"));
      add(font("Helvetica-Bold"));
      for (const one of this.images) add(stream(`/Type /XObject /Subtype /Image /Width ${one.width} /Height ${one.height} /ColorSpace /DeviceRGB /BitsPerComponent 8 /Filter /DCTDecode`, one.data));
      let file = "%PDF-1.4\n";
      const at = objects.map((text, i) => { const begin = file.length; file += `${i + 1} 0 obj\n${text}\nendobj\n`; return begin; });
      const table = at.map((begin) => `${String(begin).padStart(10, "0")} 00000 n \n`).join("");
      const end = `xref\n0 ${objects.length + 1}\n0000000000 65535 f \n${table}trailer\n<< /Size ${objects.length + 1} /Root 1 0 R >>\nstartxref\n${file.length}\n%%EOF\n`;
      return new Blob([bytes(file + end)], { type: "application/pdf" });
    }
  }

  window.vramscope = Object.assign(window.vramscope || {}, { Pdf });
})();
