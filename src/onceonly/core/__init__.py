"""The engine: what must happen (``flows``), and what makes it happen (``once``, ``async_once``)."""
