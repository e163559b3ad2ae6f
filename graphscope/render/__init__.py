"""Renderers: plain functions over ``GraphData`` with one frozen record of options each."""
