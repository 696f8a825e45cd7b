// The translator of the first screen: type a caption, watch it being translated, choose otherwise.
{
  const CAPTIONS = [
    SENTENCE,
    "Ein alter Mann, der eine Zeitung liest, sitzt auf einer Bank.",
    "Drei Jungen klettern auf einen Baum, während ihre Mutter zusieht.",
    "Ein Schornsteinfeger trägt eine Leiter durch die Straße.",
    "Ich habe heute leider keine Zeit.",
  ];
  const SHOWN_FIRST = 4; // decisions: A, little, girl, rais
  const LEAST = 0.09; // a weight that still gets an arc

  // A translation on its way -------------------------------------------------------------------------

  /** A sentence and what has been written of its translation; `seen` decisions of it are shown. */
  class Translation {
    constructor(model, text, beam) {
      Object.assign(this, { model, source: text, beam, plan: null, seen: 0 });
      this.search = new Search(model, model.encode(text));
      this.paths = [this.search.start]; // each one symbol longer than the one before
    }

    get last() { return this.paths[this.paths.length - 1]; }
    get finished() { return !this.last.next && this.seen === this.paths.length - 1; }
    get text() { return this.model.decode(this.paths[this.seen].written); }
    /** The path at which the decision that is shown was, or will be, taken. */
    get asked() { return this.paths[Math.max(0, this.seen - 1)]; }

    /** The path one symbol further: by what is likeliest now, or on the way to the best of a beam. */
    onward() {
      const { last, search } = this;
      if (!this.beam) return search.extend(last, likeliest(last.next.logProbs, 1)[0].id);
      let path = (this.plan ??= search.translate(BEAM, ALPHA, last));
      while (path.from !== last) path = path.from;
      return path;
    }

    /** Let the beam find its best path while the page stays awake; false once `isWanted` says no. */
    async prepare(isWanted) {
      if (!this.beam || this.plan || !this.last.next) return true;
      const beams = await gather(this.search.beam(BEAM, ALPHA, this.last), isWanted);
      if (beams) this.plan = this.search.best(beams[beams.length - 1], ALPHA);
      return Boolean(beams);
    }

    /** Show one decision more; take it where it has not been taken yet. */
    step() {
      if (this.finished) return;
      if (this.seen === this.paths.length - 1) this.paths.push(this.onward());
      this.seen++;
    }

    back() {
      this.seen = Math.max(0, this.seen - 1);
    }

    /** Take the decision that is shown otherwise; what came after it is forgotten. */
    decide(id) {
      const { asked } = this;
      this.paths = [...this.paths.slice(0, this.paths.indexOf(asked) + 1), this.search.extend(asked, id)];
      this.seen = this.paths.length - 1;
      this.plan = null;
    }

    finish() {
      while (!this.finished) this.step();
    }
  }

  // Drawing ------------------------------------------------------------------------------------------

  /** Cross-attention of a path at its next symbol: of one head, or the mean of a layer. */
  function weightsOf(path, { layer, head }) {
    const heads = path.next.cross[layer];
    if (head !== "") return heads[head];
    return heads[0].map((_, s) => sum(heads.map((weights) => weights[s])) / heads.length);
  }

  /** Boxes along a line, those of one word close together: [{ from, size, middle }] and their end. */
  function alongLine(pieces, tall, room) {
    const sizes = pieces.map((piece) => (tall ? 28 : 12 + 10 * spelt(piece).length));
    const words = pieces.filter((piece, i) => i > 0 && apart(piece)).length;
    const needed = sum(sizes) + 3 * (pieces.length - 1 - words);
    const gap = tall ? 8 : Math.max(8, (room - needed) / Math.max(1, words));
    let at = 4;
    const boxes = pieces.map((piece, i) => {
      if (i > 0) at += apart(piece) ? gap : 3;
      const box = { from: at, size: sizes[i], middle: at + sizes[i] / 2 };
      at += sizes[i];
      return box;
    });
    return { boxes, end: at + 4 };
  }

  const apart = (piece) => piece.startsWith(SPACE) || piece === "</s>";

  /** How wide a drawing in rows has to be. */
  const rowsWidth = (...lines) => Math.max(640, ...lines.map((pieces) => alongLine(pieces, false, 0).end));

  /**
   * The drawing: source and target in two rows, or on narrow screens in two columns, and an arc for
   * each weight. `shown` is the number of the decision whose arcs stand out; later ones are pale.
   */
  function drawing({ source, target, weights, shown }, tall) {
    const width = tall ? 340 : rowsWidth(source, target);
    const rows = [source, target].map((pieces) => alongLine(pieces, tall, width - 8));
    const height = tall ? Math.max(...rows.map(({ end }) => end)) : 230;
    const [near, far] = tall ? [140, 200] : [40, 190]; // where the two lines face each other
    const point = (along, across) => (tall ? `${across} ${round(along)}` : `${round(along)} ${across}`);
    const state = (t) => (t === shown ? "now" : t > shown ? "later" : "");
    const arcs = weights.flatMap((row, t) => row.map((weight, s) => {
      if (weight < LEAST || t > shown) return "";
      const [from, to] = [rows[1].boxes[t].middle, rows[0].boxes[s].middle];
      const path = `M${point(from, far)}C${point(from, (near + far) / 2)} ${point(to, (near + far) / 2)} ${point(to, near)}`;
      return `<path class="${state(t)}" stroke-width="${(9 * weight).toFixed(1)}" d="${path}"/>`;
    }));
    const boxes = [[source, () => "", 0], [target, state, 1]].map(([pieces, kind, side]) => pieces.map((piece, i) => {
      const { from, size, middle } = rows[side].boxes[i];
      const edge = side ? far : near - 36;
      const frame = tall
        ? { x: side ? far : 0, y: from, width: 140, height: size }
        : { x: from, y: edge, width: size, height: 36 };
      const place = Object.entries(frame).map(([name, value]) => `${name}="${round(value)}"`).join(" ");
      const [x, y] = tall ? [frame.x + 70, middle + 6] : [middle, edge + 24];
      const text = `<text x="${round(x)}" y="${round(y)}">${escaped(spelt(piece))}</text>`;
      return `<g class="piece ${kind(i)}"${side ? ` data-decision="${i}"` : ""}><rect rx="8" ${place}/>${text}</g>`;
    }));
    const label = escaped(inWords({ source, target, weights, shown }));
    return `<svg viewBox="0 0 ${round(width)} ${round(height)}" width="${round(width)}" height="${round(height)}" ` +
      `role="img" aria-label="${label}">${arcs.reverse().join("")}${boxes.flat().join("")}</svg>`;
  }

  const { round } = Math;

  /** What the drawing shows of one decision, for those who do not see it. */
  function inWords({ source, target, weights, shown }) {
    const seen = (weights[shown] ?? []).map((weight, s) => ({ weight, piece: spelt(source[s]) }));
    const most = seen.filter(({ weight }) => weight >= LEAST).sort((one, other) => other.weight - one.weight);
    const looks = most.map(({ weight, piece }) => `${piece} (${weight.toFixed(2)})`).join(", ");
    const text = target.slice(0, shown + 1).map((piece) => piece.replace(SPACE, " ").replace("</s>", "")).join("").trim();
    const written = text ? `Written: “${text}”` : "Nothing is written yet.";
    return `${written} ${looks && `To write ${spelt(target[shown] ?? "the next subword")} the model looks at ${looks}.`}`.trim();
  }

  /** A piece as it is chosen: what goes on with a word is told from what begins one. */
  const offered = (piece) => (/^\p{L}/u.test(piece) ? `…${piece}` : spelt(piece));

  /** The five likeliest pieces of the decision that is shown, the one that was taken marked. */
  function candidates({ model, asked, paths, seen }) {
    if (!asked.next) return "";
    const taken = seen > 0 ? paths[seen].written[seen - 1] : null;
    const best = likeliest(asked.next.logProbs, 5);
    if (taken !== null && best.every(({ id }) => id !== taken)) best[4] = { id: taken, logp: asked.next.logProbs[taken] };
    return best.map(({ id, logp }) => {
      const percent = (100 * Math.exp(logp)).toFixed(1);
      return `<li><button type="button" data-do="candidate" data-id="${id}" aria-pressed="${id === taken}"><span>${escaped(offered(model.words[id]))}</span>` +
        `<i style="width:${percent}%"></i><b>${percent} %</b></button></li>`;
    }).join("");
  }

  /** What there is to draw: pieces, weights by decision, and the decision that stands out. */
  function sceneOf({ model, search, paths, last, seen }, view) {
    const words = (ids) => ids.map((id) => model.words[id]);
    const weights = paths.slice(0, -1).map((path) => weightsOf(path, view));
    return { source: words(search.ids), target: words(last.written), weights, shown: seen - 1 };
  }

  /** What changes from step to step; without a `room` in pixels the drawing comes in both forms. */
  function frame(translation, view, room = null) {
    const { model, asked, text } = translation, scene = sceneOf(translation, view);
    const forms = room === null ? [false, true] : [rowsWidth(scene.source, scene.target) > 1.5 * room];
    const drawings = forms.map((tall) => `<div class="${tall ? "columns" : "rows"} scroll">${drawing(scene, tall)}</div>`);
    const before = escaped(model.decode(asked.written));
    const question = `The five likeliest ${before ? `subwords after “${before}”` : "first subwords"}`;
    return { drawings: drawings.join(""), question, candidates: candidates(translation), text };
  }

  const meanOfLast = (model) => ({ layer: model.N - 1, head: "" });

  const firstOf = (model) => new Translation(model, SENTENCE, true);

  /** What stands on the page before anybody has touched it. */
  function asAtFirst(translation) {
    translation.finish();
    translation.seen = SHOWN_FIRST;
    return translation;
  }

  /** A grid of buttons: for each layer the mean of its heads (""), and every head. */
  function chooser({ N, h }) {
    const cell = (layer, head) => {
      const name = `layer ${layer + 1}, ${head === "" ? "mean of its heads" : `head ${head + 1}`}`;
      return `<button type="button" data-do="heads" data-layer="${layer}" data-head="${head}" aria-label="${name}" ` +
        `title="${name}" aria-pressed="${head === "" && layer === N - 1}">${head === "" ? "mean" : head + 1}</button>`;
    };
    const rows = Array.from({ length: N }, (_, layer) => {
      const cells = ["", ...Array(h).keys()].map((head) => cell(layer, head));
      return `<div><span aria-hidden="true">layer ${layer + 1}</span>${cells.join("")}</div>`;
    });
    return `<div class="heads" role="group" aria-label="Layer and head whose attention is drawn">${rows.join("")}</div>`;
  }

  /** The whole translation in one drawing: a file in images/, for the notebook. */
  stills["picture"] = (model) => drawing({ ...sceneOf(asAtFirst(firstOf(model)), meanOfLast(model)), shown: Infinity }, false);

  stills["translator"] = (model) => {
    const parts = frame(asAtFirst(firstOf(model)), meanOfLast(model));
    const chips = CAPTIONS.map((text) => `<button type="button" data-do="caption">${text}</button>`).join("");
    return `<div class="play-only" hidden>
<label for="german">A caption in German</label>
<input id="german" type="text" lang="de" maxlength="160" autocomplete="off" spellcheck="false" value="${SENTENCE}">
<div class="chips scroll" lang="de">${chips}</div>
<p class="honest">It has read 29,000 captions and their translations, nothing else. Away from captions it babbles: try “${CAPTIONS[4]}”</p>
<div class="buttons"><button type="button" data-do="play">Play</button><button type="button" data-do="back">Back</button>
<button type="button" data-do="step">Step</button><button type="button" data-do="faster" aria-pressed="false">Faster</button>
<label>written by <select autocomplete="off"><option value="beam">a beam of four</option><option value="greedy">greedy decoding</option></select></label></div>
</div>
<p class="status" role="status"></p>
<div class="drawings">${parts.drawings}</div>
<p class="written" lang="en" aria-live="polite">${escaped(parts.text)}</p>
<div class="below"><div><p class="question">${parts.question}</p>
<p class="play-only honest" hidden>Choose another, and the model goes on from it.</p><ol class="candidates">${parts.candidates.replaceAll("<button", "<button disabled")}</ol></div>
<div class="play-only" hidden><p>Arcs: cross-attention, mean or one head</p>${chooser(model)}</div></div>`;
  };

  // In the browser -----------------------------------------------------------------------------------

  live["translator"] = (figure) => {
    const find = (selector) => figure.querySelector(selector);
    const [field, mode, status, written] = ["input", "select", ".status", ".written"].map(find);
    const [drawings, list, button] = [".drawings", ".candidates", "[data-do=play]"].map(find);
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    let model = null, translation = null;
    let turn = 0, playing = false, pace = 700, typing = null, room = 0;

    /** Has the reader typed, or chosen another search, since the translation that is shown began? */
    function isOutdated() {
      const { source, beam } = translation ?? { source: SENTENCE, beam: true };
      return field.value.trim() !== source || (mode.value === "beam") !== beam;
    }

    function setPlaying(now) {
      playing = now;
      button.textContent = now ? "Pause" : "Play";
      written.setAttribute("aria-busy", now); // read aloud when it stands still
    }

    function show() {
      room = drawings.clientWidth;
      const parts = frame(translation, find(".heads [aria-pressed=true]").dataset, room);
      const focused = [...list.children].findIndex((item) => item.contains(document.activeElement));
      for (const name of ["drawings", "question", "candidates"]) find(`.${name}`).innerHTML = parts[name];
      list.children[focused]?.firstChild.focus();
      all(".scroll", drawings).forEach(markScrolling);
      written.textContent = parts.text || "…";
    }

    /** Stop, and do `change` with the model: only the last wish counts, and what is returned says whether it still does. */
    async function act(change, goesOn = false) {
      const mine = ++turn, isLast = () => mine === turn;
      clearTimeout(typing);
      setPlaying(goesOn);
      model = await modelFor(status);
      if (!isLast()) return isLast;
      if (model && !translation && !isOutdated()) {
        const first = firstOf(model);
        if (!await first.prepare(isLast)) return isLast;
        translation = asAtFirst(first);
      }
      if (model) change();
      else setPlaying(false);
      if (translation) show();
      return () => model && isLast();
    }

    /** Do `change`, and after a moment go on to the end, step by step. */
    async function play(change, moment) {
      const isLast = await act(change, true);
      await pause(moment);
      while (isLast() && await translation.prepare(isLast)) {
        translation.step();
        if (still.matches) translation.finish();
        setPlaying(!translation.finished);
        show();
        if (!playing) return;
        await pause(pace);
      }
    }

    function begin() {
      const text = field.value.trim();
      if (!text) return act(() => { status.textContent = "Type a caption in German, or choose one."; });
      return play(() => { translation = new Translation(model, text, mode.value === "beam"); }, 0);
    }

    const actions = {
      play() {
        if (playing) act(() => {});
        else if (translation?.finished) begin();
        else play(() => {}, 0);
      },
      async step() {
        const isLast = await act(() => {});
        if (!isLast() || !await translation.prepare(isLast)) return;
        translation.step();
        show();
      },
      back: () => act(() => translation.back()),
      candidate: ({ dataset: { id } }) => play(() => translation.decide(Number(id)), pace),
      decision: ({ dataset: { decision } }) => act(() => { translation.seen = Number(decision) + 1; }),
      faster(pressed) {
        pace = pace === 700 ? 250 : 700;
        pressed.setAttribute("aria-pressed", pace === 250);
      },
      caption({ textContent }) {
        field.value = textContent;
        begin();
      },
      heads(pressed) {
        for (const other of all(".heads button", figure)) other.setAttribute("aria-pressed", other === pressed);
        if (translation) show();
        else if (!playing) act(() => {});
      },
    };
    const OF_WHAT_IS_SHOWN = ["play", "step", "back", "candidate", "decision"];

    figure.addEventListener("click", ({ target }) => {
      const pressed = target.closest("[data-do], [data-decision]");
      if (!pressed) return;
      const wish = pressed.dataset.do ?? "decision", pauses = wish === "play" && playing;
      if (OF_WHAT_IS_SHOWN.includes(wish) && isOutdated() && !pauses) begin(); // what was typed comes first
      else actions[wish](pressed);
    });
    field.addEventListener("focus", () => modelFor(status));
    field.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(begin, 400);
    });
    field.addEventListener("keydown", ({ key }) => { if (key === "Enter") begin(); });
    mode.addEventListener("change", begin);
    addEventListener("resize", () => { if (translation && drawings.clientWidth !== room) show(); });
    for (const part of all(".play-only", figure)) part.hidden = false;
    for (const candidate of all("button", list)) candidate.disabled = false;
  };
}
