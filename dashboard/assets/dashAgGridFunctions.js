// Formatters of the tables. All values reach the page as text, never as markup.
(function () {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

  // The same rounding as vramscope.units.format_bytes.
  function bytes(n) {
    if (n === null || n === undefined || Number.isNaN(n)) return "";
    const sign = n < 0 ? "-" : "";
    let value = Math.abs(n);
    for (let power = 0; power < units.length; power++) {
      const digits = power === 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
      const text = value.toFixed(digits);
      if (Number(text) < 1024 || power === units.length - 1) return `${sign}${text} ${units[power]}`;
      value /= 1024;
    }
  }

  const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
  functions.vsBytes = bytes;
  functions.vsCount = (n) => (n === null || n === undefined ? "" : Number(n).toLocaleString("en-US"));

  // Columns that a narrow table has no room for are hidden: cut off at the right they would need scrolling.
  functions.vsFitColumns = function (api) {
    const { left, right } = api.getHorizontalPixelRange();
    for (const column of api.getColumns() || []) {
      const { leastTablePx } = column.getColDef().context || {}, fits = right - left >= leastTablePx;
      if (leastTablePx && column.isVisible() !== fits) api.setColumnsVisible([column], fits);
    }
  };

  const renderers = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
  renderers.VsWhere = function (props) {
    const h = React.createElement, { api, node } = props;
    // Dash listens to a grid only after its first rows are there, so the first row asks for the first fit.
    React.useEffect(() => { if (node.rowIndex === 0) functions.vsFitColumns(api); }, [api, node.rowIndex]);
    return h("span", { className: "where" },
      props.data.swatch ? h("i", { className: `swatch part-${props.data.swatch}` }) : null,
      h("bdi", { className: "function" }, props.value),
      h("bdi", { className: "place" }, props.data.place || ""));
  };
  renderers.VsShare = function (props) {
    const h = React.createElement;
    const percent = 100 * (props.value || 0);
    return h("span", { className: "share" },
      h("span", { className: "share-track" }, h("span", { className: "share-bar", style: { width: `${percent}%` } })),
      h("span", { className: "share-text" }, percent > 0 && percent < 0.05 ? "<0.1 %" : `${percent.toFixed(1)} %`));
  };
  window.vramscope = window.vramscope || {};
  window.vramscope.bytes = bytes;
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, {
    search: (text, options) => ({ ...options, quickFilterText: text || "" }),
  });
})();
