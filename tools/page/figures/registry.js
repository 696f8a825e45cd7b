// The figures that can be played with, in no order: to add one, write a module and a line here.
//
// `replaces` names the figure of the notebook whose place it takes: the stem of a drawing, or the name of an
// example. What that has to say is given to `firstScene(model, data)`: the rows of a chart, the addresses of a
// drawing's boxes, or the record of results called `record`, with the log of its run if it has one. `Whole` is drawn where
// there are no scripts, if a figure shows only a part at a time.

import { Broken, firstScene as firstBroken } from "./broken.js";
import { ByHand, firstScene as firstByHand } from "./by-hand.js";
import { firstScene as firstMap, ModelMap } from "./model-map.js";
import { AttentionMaps, firstScene as firstMaps } from "./attention-maps.js";
import { firstScene as firstMoments, Moments, Whole as WholeMoments } from "./moments.js";
import { firstScene as firstPieces, PiecesOfText } from "./pieces.js";
import { firstScene as firstSampling, Sampling } from "./sampling.js";
import { firstScene as firstTranslation } from "./translation.js";
import { Translator } from "./translator.js";
import { firstScene as firstTree, Tree, Whole as WholeTree } from "./tree.js";

export const FIGURES = {
  translator: { replaces: "first-translation", Component: Translator, firstScene: firstTranslation },
  "by-hand": { replaces: "attention-by-hand", Component: ByHand, firstScene: firstByHand },
  map: { replaces: "architecture", Component: ModelMap, firstScene: firstMap },
  moments: {
    replaces: "watch-it-learn",
    Component: Moments,
    firstScene: firstMoments,
    Whole: WholeMoments,
    record: "learning",
  },
  broken: {
    replaces: "attention-of-a-copy",
    Component: Broken,
    firstScene: firstBroken,
    record: "switches",
  },
  pieces: { replaces: "cut-a-text", Component: PiecesOfText, firstScene: firstPieces },
  tree: { replaces: "one-search", Component: Tree, firstScene: firstTree, Whole: WholeTree },
  maps: { replaces: "attention-maps", Component: AttentionMaps, firstScene: firstMaps },
  sampling: { replaces: "next-token", Component: Sampling, firstScene: firstSampling },
};
