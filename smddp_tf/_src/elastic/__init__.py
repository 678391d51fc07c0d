"""Trainings that go on when ranks are lost, join or leave; knows no framework."""
