"""The folder that ``vramscope run COMMAND`` puts on the module path of the processes below it.

It holds nothing but ``sitecustomize.py``, as every name in it hides the same name elsewhere.
"""
