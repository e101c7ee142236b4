// Built from elements and text, never from markup.
const SVG = "http://www.w3.org/2000/svg", WIDTH = 240, HEIGHT = 60;
function add(parent, name, attributes = {}) {
  const made = document.createElementNS(name === "div" ? "http://www.w3.org/1999/xhtml" : SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}
function area(columns, which, seconds, top) {
  const x = (s) => (s / seconds * WIDTH).toFixed(1), y = (n) => (HEIGHT - n / top * (HEIGHT - 2)).toFixed(1);
  let left = 0, points = `0,${HEIGHT}`;
  for (const column of columns) {
    points += ` ${x(left)},${y(column[which])} ${x(column[0])},${y(column[which])}`;
    left = column[0];
  }
  return `${points} ${x(left)},${HEIGHT}`;
}
function render({ model, el }) {
  el.classList.add("vramscope-live");
  const words = add(el, "div");
  const box = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" };
  const picture = add(el, "svg", { role: "img", ...box });
  const reserved = add(picture, "polygon", { fill: "#56B4E9", "fill-opacity": "0.4" });
  const allocated = add(picture, "polygon", { fill: "#7A8896", "fill-opacity": "0.9" });
  const draw = () => {
    const { text, columns } = model.get("shown");
    words.textContent = text;
    picture.setAttribute("aria-label", text);
    const seconds = columns.length ? columns[columns.length - 1][0] : 1;
    const top = Math.max(1, ...columns.map((column) => Math.max(column[1], column[2])));
    allocated.setAttribute("points", area(columns, 1, seconds, top));
    reserved.setAttribute("points", area(columns, 2, seconds, top));
  };
  model.on("change:shown", draw);
  draw();
  return () => model.off("change:shown", draw);
}
export default { render };
