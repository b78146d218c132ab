"""Files in which the system reports its resources, for tests."""

import shutil


class SystemFiles:
    """The system's files below another root."""

    def __init__(self, root):
        self.root = root

    def __setitem__(self, name, lines):
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))

    def __ior__(self, files):
        for name, lines in files.items():
            self[name] = lines
        return self

    def clear(self):
        shutil.rmtree(self.root)
