// Figures as people read them. Unknown is "-", never zero.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
export const count = (value) => (known(value) ? whole.format(value) : "-");

export function compact(value) {
  if (!known(value)) return "-";
  const size = Math.abs(value);
  for (const [least, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= least) {
      const scaled = value / (unit === "k" ? 1e3 : least);
      return `${scaled.toFixed(Math.abs(scaled) >= 100 ? 0 : 1)}${unit}`;
    }
  }
  return whole.format(value);
}

export function rate(value) {
  if (!known(value)) return "-";
  return value >= 100 ? compact(value) : value.toFixed(value >= 10 ? 1 : 2);
}

export const percent = (share, digits = 0) => (known(share) ? `${(100 * share).toFixed(digits)}%` : "-");

export function seconds(value) {
  if (!known(value)) return "-";
  if (value < 0.001) return value === 0 ? "0 s" : "<1 ms";
  if (value < 1) return `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 90) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  if (value < 5400) return `${(value / 60).toFixed(1)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

/** Two durations with one unit where they share it. */
export function pair(one, other) {
  const [first, second] = [seconds(one), seconds(other)];
  if (first === "-" && second === "-") return "-";
  const unit = second.split(" ")[1];
  return first.split(" ")[1] === unit && unit ? `${first.split(" ")[0]} / ${second}` : `${first} / ${second}`;
}

export const clock = (unix) => new Date(1000 * unix).toLocaleTimeString("en-GB");
export const moment = (unix) => (unix ? new Date(1000 * unix).toLocaleString("en-GB") : "-");
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** The value under which a share of what a histogram's buckets hold lies, between bounds in proportion. */
export function quantile(counts, bounds, share) {
  const total = counts.reduce((sum, each) => sum + each, 0);
  if (!total) return null;
  let below = 0;
  for (let place = 0; place < counts.length; place += 1) {
    if (below + counts[place] >= share * total && counts[place] > 0) {
      const low = place ? bounds[place - 1] : 0;
      const high = place < bounds.length ? bounds[place] : bounds[bounds.length - 1];
      return low + (high - low) * ((share * total - below) / counts[place]);
    }
    below += counts[place];
  }
  return bounds[bounds.length - 1];
}
