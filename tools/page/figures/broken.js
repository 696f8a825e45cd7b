// The copy task with a part left out, at stored moments of the training (Part 4, "Break it").

import { usePlayer } from "./lib/player.js";
import { decimal } from "./lib/text.js";
import { Button, html, useState } from "./lib/ui.js";
import { Alignment, Loss, Moment } from "./moments.js";

const WIDE = 20; // sequences in a row of the count
const END = 1;
const say = (token) => (token === END ? "end" : String(token));

const ALL = "all parts";

/** What is asked of the reader who has chosen this. */
const LOOK = {
  [ALL]: "Where does the model look while it writes, and from when on?",
  "no causal mask": "Compare the loss with the count.",
  "no positions": "Which tokens does it write, and in what order?",
  "no residual connections": "Does it look anywhere in particular?",
  "no feed-forward network": "Does it miss anything?",
};

/** What the page shows, before anybody has touched it the whole model at its last moment. */
export function firstScene(_, { sequences, runs }) {
  const shown = ({ updates, copied, written, attention }) => ({
    updates,
    copied,
    pieces: written,
    rows: attention.map((row) => row.split(" ").map(Number)),
  });
  return {
    sequences,
    reads: runs[0].read,
    runs: runs.map(({ without, moments }) => ({
      parts: without === "nothing" ? ALL : without.replace(" in training", ""),
      moments: moments.map(shown),
      losses: moments.slice(1).map(({ updates, loss }) => [updates, loss]),
    })),
  };
}

/** A square for each sequence, full for a copy without a mistake. */
function Count({ copied, sequences }) {
  const squares = (from, to) =>
    Array.from({ length: to - from }, (_, i) => from + i)
      .map((n) => `M${10 * (n % WIDE)} ${10 * Math.floor(n / WIDE)}h8v8h-8z`)
      .join("");
  return html`<p class="title"><b>${copied}</b> of ${sequences} sequences copied</p>
    <svg class="count" viewBox=${`-1 -1 200 ${sequences / 2}`} role="img" aria-label=${`${copied} of ${sequences} squares are full`}>
      <path class="empty" d=${squares(copied, sequences)} /><path class="full" d=${squares(0, copied)} />
    </svg>`;
}

/** Begins with the whole model as it is trained; to leave a part out is to train it again. */
export function Broken({ scene: { sequences, reads, runs } }) {
  const [chosen, choose] = useState(0);
  const player = usePlayer(runs[0].moments.length, { pace: 400 });
  const { parts, moments, losses } = runs[chosen];
  const { updates, copied, pieces, rows } = moments[player.at - 1];
  const steps = moments.map((moment) => moment.updates);
  const loss = losses[player.at - 2]?.[1];
  const says = loss === undefined ? "The weights are still random." : `The loss is ${decimal(loss, 3)}.`;
  const leave = (i) => {
    choose(i);
    player.restart(player.count);
    player.play();
  };
  const chips = runs.map(
    (run, i) => html`<${Button} pressed=${i === chosen} onClick=${() => leave(i)}>${run.parts}<//>`,
  );
  return html`<div class="moments broken">
    <div class="chips" role="group" aria-label="The model is trained with"><span>trained with</span>${chips}</div>
    <${Moment} ...${{ player, steps }} />
    <div class="board">
      <div>
        <p class="title">it reads the columns and writes the rows; colour: where its last layer looks</p>
        <${Alignment} reads=${reads} scene=${{ pieces, rows }} room=${reads.length + 1} say=${say}
          wrong=${(token, i) => token !== (reads[i] ?? END)} />
      </div>
      <div>
        <${Count} ...${{ copied, sequences }} />
        <${Loss} ...${{ losses, steps, says }} at=${player.at - 1} name="loss" />
      </div>
    </div>
    <p class="line" role="status" aria-busy=${String(player.playing)}>Update ${updates}. ${says} ${LOOK[parts]}</p>
  </div>`;
}
