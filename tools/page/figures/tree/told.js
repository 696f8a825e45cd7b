// What is said about the tree at a step.

import { continued, decimal, grouped } from "../lib/text.js";
import { ALPHA, lengthPenalty } from "../model/search.js";
import { bestAt, forkOf, lostAt, reached } from "./known.js";

const NUMBERS = ["no", "one", "two", "three", "four", "five"];
const capital = (words) => words.replace(/^./, (letter) => letter.toUpperCase());
const share = (number) => (number < 0.005 ? "under 0.01" : decimal(number));

const likely = ({ logp }, digits) => `log-probability ${decimal(logp, digits)}`;

/** A whole sentence in quotation marks, among the words of another. */
const cited = ({ text }) => `“${text.replace(/\.$/, "")}”`;

/** A hypothesis in quotation marks, to the letter. */
function quoted({ text, piece }) {
  if (piece !== "</s>") return `“${text}”`;
  return text ? `“${text}” with its end` : "the end alone";
}

/** Where the greedy path is at a step of the beam. */
function whereGreedy(scene, step) {
  const place = scene.steps[step].greedy + 1;
  return place
    ? `The greedy path is at place ${place}.`
    : `The greedy path fell out at step ${lostAt(scene)}.`;
}

/** What a step has kept. */
function whatIsKept(scene, at) {
  const { steps, symbols } = scene;
  const before = steps[at - 1].kept;
  const going = before.filter(({ goesOn }) => goesOn).length;
  const ended = before.filter((node) => node.ended).length;
  const kept = steps[at].kept.filter(({ waits }) => !waits);
  const last = kept[kept.length - 1];
  const keeps = ended === 1 ? "has ended and keeps its place" : "have ended and keep their places";
  const places = ended ? `${capital(NUMBERS[ended])} ${keeps}. ` : "";
  const one = going === 1;
  const who = one ? "One hypothesis" : `${capital(NUMBERS[going])} hypotheses`;
  const proposers = at === 1 ? "The start" : who;
  const proposed = `${proposers} ${one ? "proposes" : "propose"} ${grouped(going * symbols)} candidates`;
  const total = `with ${likely(last)}`;
  if (kept.length === 1) return `${places}${proposed}; the likeliest is kept: ${quoted(last)}, ${total}.`;
  return `${places}${proposed}; the ${NUMBERS[kept.length]} likeliest are kept, the last of them ${quoted(last)}, ${total}.`;
}

/** Why the search has stopped. */
function whyOver({ steps, longest }) {
  const { kept, best } = steps[steps.length - 1];
  const going = kept.filter(({ ended }) => !ended);
  if (!going.length) return "The search is over: every hypothesis has ended.";
  if (going.every(({ length }) => length >= longest))
    return "The search is over: the longest length is reached.";
  const reach = Math.max(...going.map(({ logp }) => logp)) / lengthPenalty(longest, ALPHA);
  return (
    `The search is over: the best that has ended scores ${decimal(kept[best].score)}, ` +
    `and what goes on can never come above ${decimal(reach)}.`
  );
}

/** The winner and greedy decoding, in a few sentences that follow from both. */
function verdict(scene) {
  const { steps, greedy, width } = scene;
  const fork = forkOf(scene);
  const { kept, best } = steps[steps.length - 1];
  const winner = kept[best];
  const rival = greedy[greedy.length - 1];
  const digits = fork >= 0 && Math.abs(winner.score - rival.score) < 0.01 ? 4 : 2;
  const worth = (node) => `${likely(node, digits)} and score ${decimal(node.score, digits)}`;
  if (fork < 0) {
    const who = width === 1 ? "A beam of one is greedy decoding" : "Greedy decoding and the beam agree";
    return `${who}: both write ${cited(winner)}, with ${worth(winner)}.`;
  }
  const choice = ({ piece, share: part }) => `“${continued(piece)}” (${share(part)})`;
  const after = fork ? `After “${greedy[fork - 1].text}” greedy` : "Greedy";
  const lost = lostAt(scene);
  return [
    `${after} took ${choice(greedy[fork])}, the winner ${choice(bestAt(scene, steps.length - 1)[fork])}.`,
    `Greedy’s sentence, ${cited(rival)}, has ${worth(rival)}; the winner’s, ${cited(winner)}, ${worth(winner)}.`,
    rival.score > winner.score ? "So greedy’s has the higher score." : "",
    rival.score < winner.score && winner.logp < rival.logp
      ? "Only the length penalty puts the winner in front."
      : "",
    `Greedy’s path ${lost < 0 ? "stayed in the beam to the end of the search" : `fell out of the beam at step ${lost}`}.`,
  ]
    .filter(Boolean)
    .join(" ");
}

/** What is known at a step, in words. */
export function told(scene, at) {
  const { last, done, over } = reached(scene, at);
  const { kept, best } = scene.steps[last];
  if (over) return `${whyOver(scene)} ${verdict(scene)}`;
  if (done) return `${whyOver(scene)} Its best is ${quoted(kept[best])}. Greedy decoding still goes on.`;
  const score = `The best so far is ${quoted(kept[best])}, with score ${decimal(kept[best].score)}.`;
  return `Step ${at}. ${whatIsKept(scene, at)} ${score} ${whereGreedy(scene, at)}`;
}
