// What the model reads and writes, and sentences to try.

export const READS = { code: "de", name: "German" };
export const WRITES = { code: "en" };

export const SENTENCES = [
  "Ein kleines Mädchen hebt einen roten Ball auf.", // in the first picture of all figures
  "Ein alter Mann, der eine Zeitung liest, sitzt auf einer Bank.",
  "Drei Jungen klettern auf einen Baum, während ihre Mutter zusieht.",
  "Ein Schornsteinfeger trägt eine Leiter durch die Straße.",
  "Ich habe heute leider keine Zeit.",
];

/** Captions on which it shows that the model has forgotten something, see blindfolds.js. */
export const TELLING = { order: "Ein Hund beißt einen Mann.", wrote: "Ein Mann repariert ein Fahrrad." };

/** For the beam. */
export const SEARCHED = [
  "Eine Künstlerin malt im Freien.", // greedy decoding begins with “A” and cannot go back
  "Ein Kind schläft auf dem Schoß seiner Mutter.", // the width decides
];
