"""Pictures in chats with a run."""

from __future__ import annotations

import base64
from pathlib import Path

from qkv.data.records.images.image_files import opened_image
from qkv.data.records.images.pictures import URI
from qkv.data.records.values import Unusable
from qkv.runs.run import Run
from qkv.system.errors import UserError
from qkv.tasks.chats.pictures import PictureReader, reader_of_pictures


def picture_reader(run: Run) -> PictureReader | None:
    """Return the reader of the pictures of a run's chats; None if no named input of the run is a picture."""
    return reader_of_pictures(run.recipe, run.vocabulary)


def picture_uri(path: str | Path) -> str:
    """Return the picture in a file as a data URI, with the bytes of the file. Raises ``UserError``."""
    try:
        image = opened_image(str(path))
        content = Path(path).expanduser().read_bytes()
    except Unusable as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    return f"{URI}{image.format.lower()};base64,{base64.b64encode(content).decode()}"
