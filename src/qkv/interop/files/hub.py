"""Download a published model with ``huggingface_hub``, using its cache, revisions and ``HF_HUB_OFFLINE``."""

from __future__ import annotations

from pathlib import Path

from qkv.interop.files.places import CONFIG, is_published
from qkv.system.errors import UserError

WANTED = ("*.json", "*.safetensors", "*.txt", "tokenizer.model", "spiece.model", "*.jinja")
PICKLED = ("pytorch_model*.bin", "open_clip_pytorch_model.bin")


def fetch(name: str, revision: str | None = None, pickles: bool = False) -> Path:
    """Return the local folder of the model ``name`` on the Hugging Face Hub; download files that are not cached.

    Raises ``UserError``.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    of = f" at revision {revision!r}" if revision else ""
    try:
        snapshot = snapshot_download(name, revision=revision, allow_patterns=[*WANTED, *(PICKLED if pickles else ())])
    except RevisionNotFoundError:
        raise UserError(f"the published model {name!r} has no revision {revision!r}") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise UserError(
            f"there is no folder {name!r} here and no published model of that name, or it requires a login"
        ) from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise UserError(
            f"there is no folder {name!r} here, and {name!r}{of} is not in the cache and cannot be downloaded now"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        raise UserError(f"the published model {name!r}{of} cannot be loaded: {str(error).splitlines()[0]}") from None
    folder = Path(snapshot)
    if not is_published(folder):
        raise UserError(f"the published model {name!r}{of} has no {CONFIG}, so its architecture is unknown")
    return folder
