"""The commands of ``backpass``, a module each; ``backpass.cli`` chooses one."""
