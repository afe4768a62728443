"""Retrievers of other papers that appear in the papers' tables. Each retriever has a folder with its stages and its models.

The file ``config.py`` of a folder has the config classes of the stages, and needs only pydantic. The stages run the other
modules of the folder. The registry of stages finds a new folder automatically. No other package imports a
baseline.
"""
