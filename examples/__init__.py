"""Programs that users of Icestream read and run.

Single files run on their own (`python examples/shop_windows.py`); each folder is a larger
application with a generator, a query, an offline model and a demo (`python -m examples NAME`).
"""
