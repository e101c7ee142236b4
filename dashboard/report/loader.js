// Unpacks plotly.js and draws the figures of a report.
(async () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = JSON.parse(document.getElementById("config").textContent);
  figures.forEach((figure, i) => Plotly.newPlot(`figure${i}`, figure.data, figure.layout, config));
  document.documentElement.dataset.ready = "yes";
})();
