// The map of the model in the margin: what the section in sight builds is lit.

const map = document.getElementById("map");

/** Show the map beside its Parts, with the boxes of a section lit. */
export function lightMap(part, section) {
  map?.classList.toggle("shown", map.dataset.parts.split(" ").includes(part));
  map
    ?.querySelectorAll("a")
    .forEach((box) => box.classList.toggle("lit", box.dataset.built.split(" ").includes(section)));
}
