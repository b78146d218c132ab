// Returns the texts of a page with their boxes and colours, and makes them transparent; scripts/tools/judges/pages.py.
() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const edges = ({ left, top, right, bottom }) => [left + scrollX, top + scrollY, right + scrollX, bottom + scrollY];
  const common = (a, b) => [Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])];
  const found = [];

  const add = (element, style, text, boxes, drawn = false) => {
    const colour = rgba(drawn ? style.fill : style.color);
    let opacity = (colour[3] / 255) * (drawn ? Number(style.fillOpacity) : 1);
    let shown = [0, 0, document.documentElement.scrollWidth, document.documentElement.scrollHeight];
    for (let each = element; each; each = each.parentElement) {
      const own = getComputedStyle(each);
      if (own.clipPath !== "none") return;
      opacity *= Number(own.opacity);
      if (own.overflowX !== "visible" && each !== document.body && each !== document.documentElement)
        shown = common(shown, edges(each.getBoundingClientRect()));
    }
    for (const box of boxes) {
      const area = common(edges(box), shown);
      if (area[2] - area[0] < 2 || area[3] - area[1] < 2) continue;
      const of = [element.tagName.toLowerCase(), ...element.classList].join(".");
      const [size, bold] = [parseFloat(style.fontSize), Number(style.fontWeight) >= 700];
      found.push({ text: text.trim().slice(0, 40), area, colour: colour.slice(0, 3), opacity, size, bold, of });
    }
  };

  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode, element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
    if (["SCRIPT", "STYLE", "NOSCRIPT", "OPTION", "title"].includes(element.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    add(element, getComputedStyle(element), node.data, range.getClientRects(), element instanceof SVGElement);
  }
  for (const element of document.querySelectorAll("select")) if (element.checkVisibility())
    add(element, getComputedStyle(element), element.selectedOptions[0]?.text ?? "", [element.getBoundingClientRect()]);
  for (const element of document.querySelectorAll("body *")) for (const pseudo of ["::before", "::after"]) {
    const style = getComputedStyle(element, pseudo);
    if (/[^"\s]/.test(style.content.replace(/^(none|normal)$/, "")) && element.checkVisibility())
      add(element, style, style.content, [element.getBoundingClientRect()]);
  }

  const hidden = new CSSStyleSheet();
  hidden.insertRule("*, ::before, ::after { -webkit-text-fill-color: transparent !important; }");
  hidden.insertRule("svg text { fill: transparent !important; }");
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, hidden];
  return found;
}
