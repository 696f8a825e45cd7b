#!/bin/sh
# Fetch the vendored files again, in the versions that VERSIONS names. Needs npm; a build does not.
# KaTeX runs while the page is built; its fonts and the text fonts are inlined into the page. Figures
# are drawn by Preact and htm; render-to-string serves the build alone.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
mkdir -p "$here/katex/fonts" "$here/fonts" "$here/preact"
while read -r package version; do
    archive=$(npm pack --silent "$package@$version")
    rm -rf package
    tar xzf "$archive"
    case $package in
    katex)
        cp package/LICENSE package/dist/katex.min.js package/dist/katex.min.css "$here/katex/"
        for font in "$here"/katex/fonts/*.woff2; do # only those that assets.py embeds
            cp "package/dist/fonts/${font##*/}" "$font"
        done ;;
    @fontsource-variable/*)
        family=${package#*/}
        cp package/LICENSE "$here/fonts/LICENSE-$family"
        cp package/files/"$family"-latin-wght-normal.woff2 "$here/fonts/"
        # Only running text is ever set in italics.
        if [ "$family" = source-serif-4 ] || [ "$family" = source-sans-3 ]; then
            cp package/files/"$family"-latin-wght-italic.woff2 "$here/fonts/"
        fi ;;
    preact)
        cp package/LICENSE package/dist/preact.mjs package/hooks/dist/hooks.mjs "$here/preact/" ;;
    htm)
        cp package/dist/htm.mjs "$here/preact/"
        cp package/LICENSE "$here/preact/LICENSE-htm" ;;
    preact-render-to-string)
        cp package/dist/index.mjs "$here/preact/render-to-string.mjs"
        cp package/LICENSE "$here/preact/LICENSE-render-to-string" ;;
    esac
done <"$here/VERSIONS"
sed -i '/^\/\/# sourceMappingURL/d' "$here"/preact/*.mjs
