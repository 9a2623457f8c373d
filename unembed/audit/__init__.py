"""Audit a vector store: what do these vectors give away?"""
