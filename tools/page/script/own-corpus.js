// On the page of another model in the place of figures/lib/corpus.js: what that page says of its model.

const { languages, sentences } = JSON.parse(document.getElementById("about").textContent);
const [reads, writes] = languages;

/** The English name of a language; its code where it has none. */
function nameOf(code) {
  try {
    return new Intl.DisplayNames("en", { type: "language" }).of(code);
  } catch {
    return code;
  }
}

export const READS = { code: reads, name: nameOf(reads) };
export const WRITES = { code: writes };
export const KNOWN = false;
export const SENTENCES = sentences;
export const SEARCHED = sentences;
