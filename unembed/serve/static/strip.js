// The vector as a small heat strip: one cell for each number, accent above zero, ink below.

const WIDE = 5; // CSS pixels of a cell, at least
const TALL = 10;

export class Strip {
  constructor(canvas) {
    this.canvas = canvas;
    this.values = null;
    new ResizeObserver(() => this.paint()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
    this.paint();
  }

  draw(values) {
    const fresh = values && values !== this.values;
    this.values = values;
    this.canvas.ariaLabel = values ? describe(values) : "No vector yet";
    this.paint();
    if (fresh && !matchMedia("(prefers-reduced-motion: reduce)").matches)
      this.canvas.animate([{ clipPath: "inset(0 100% 0 0)" }, { clipPath: "inset(0)" }], { duration: 450, easing: "ease-out" });
  }

  paint() {
    const width = this.canvas.parentElement.clientWidth;
    const count = this.values?.length ?? 384;
    const columns = fit(count, Math.max(1, Math.floor(width / WIDE)));
    const rows = Math.ceil(count / columns);
    const cell = width / columns;
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(rows * TALL * scale);
    this.canvas.style.setProperty("height", `${rows * TALL}px`);
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(this.canvas);
    const [above, below, blank] = ["--accent", "--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
    const top = this.values ? loud(this.values) : 1;
    for (let i = 0; i < count; i++) {
      const value = this.values ? this.values[i] / top : 0;
      pen.fillStyle = this.values ? (value >= 0 ? above : below) : blank;
      pen.globalAlpha = this.values ? 0.05 + 0.95 * Math.min(1, Math.abs(value)) ** 1.2 : 0.5;
      pen.fillRect((i % columns) * cell, Math.floor(i / columns) * TALL, cell - 1, TALL - 1);
    }
  }
}

/** The most columns up to `most` that fill every row, if there are such. */
function fit(count, most) {
  for (let columns = Math.min(most, count); columns > most / 2; columns--) if (count % columns === 0) return columns;
  return Math.min(most, count);
}

/** One very large number must not make all others pale: the 98th percentile is full shade. */
function loud(values) {
  const sizes = Array.from(values, Math.abs).sort((a, b) => a - b);
  return sizes[Math.floor(sizes.length * 0.98)] || sizes.at(-1) || 1;
}

function describe(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return `${values.length} numbers from ${low.toFixed(3)} to ${high.toFixed(3)}, drawn as shades`;
}
