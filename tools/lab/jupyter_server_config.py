"""For `make lab`: the script opens as a notebook in which set-up is folded, as on the page."""

from jupytext import TextFileContentsManager


class FoldingContentsManager(TextFileContentsManager):
    """Folds cells that are tagged `hide-input` when a notebook is opened."""

    def get(self, path: str, content: bool = True, **options) -> dict:
        model = super().get(path, content, **options)
        if model["type"] == "notebook" and content:
            for cell in model["content"]["cells"]:
                if "hide-input" in cell["metadata"].get("tags", []):
                    cell["metadata"]["jupyter"] = {"source_hidden": True}
        return model


get_config().ServerApp.contents_manager_class = FoldingContentsManager  # noqa: F821 (Jupyter's)
