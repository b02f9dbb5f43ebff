// Draws each figure when it comes into view, in the colours of the page, and again when those change.
(() => {
  "use strict";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function themed(layout) {
    const themed = structuredClone(layout);
    themed.paper_bgcolor = themed.plot_bgcolor = "rgba(0,0,0,0)";
    themed.font = { ...themed.font, color: colour("--ink") };
    themed.modebar = { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--mark") };
    themed.hoverlabel = {
      ...themed.hoverlabel, bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") },
    };
    for (const key of Object.keys(themed)) {
      if (/^[xy]axis/.test(key)) {
        themed[key] = {
          ...themed[key], gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"),
        };
      }
    }
    return themed;
  }

  function draw(place) {
    const figure = read(place.dataset.figure);
    return Plotly.react(place, figure.data, themed(figure.layout), { responsive: true, displaylogo: false });
  }

  const drawn = new Set();
  const watch = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (isIntersecting) {
        watch.unobserve(target);
        drawn.add(target);
        draw(target);
      }
    }
  }, { rootMargin: "400px" });
  const places = document.querySelectorAll(".figure");
  places.forEach((place) => watch.observe(place));

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));
  // On paper nothing scrolls into view.
  addEventListener("beforeprint", () => places.forEach((place) => { drawn.add(place); draw(place); }));
})();
